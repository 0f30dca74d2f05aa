"""The environment ranks are started in, and who else may have started this process."""

import dataclasses
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.strategies import DDPStrategy
from torch import nn

from fakes.recorded import RecordedCell
from scalewise import records
from scalewise.config import ConfigError, cause_of
from scalewise.doctor.host_facts import host_facts
from scalewise.host import foreign_launch, rendezvous, rows, scrubbed
from scalewise.records import CellFolder, CurrentAttempt, DeviceInfo, PlannedCell, current_attempt
from scalewise.sweep import worker
from scalewise.tracking.tracker import SweepName, run_info
from scalewise.train import RankContext, collect, experiment, is_ours, note_imported, provenance
from scalewise.train.provenance import emulations
from scalewise.train.rank import settle_device

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "a"}
SRUN = {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "0"}


@pytest.mark.parametrize(
    ("environment", "found"),
    [({}, None), ({"RANK": "1", "WORLD_SIZE": "2"}, None), (TORCHRUN, ("torchrun", 1, 2)),
     ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, None), (SRUN, ("srun", 3, 4)),
     (TORCHRUN | SRUN, ("srun", 3, 4))],
)  # fmt: skip
def test_a_foreign_launch_is_recognised(
    environment: dict[str, str], found: tuple[str, int, int] | None
) -> None:
    assert foreign_launch(environment) == found
    kept = {"PATH": "/bin", "SLURM_JOB_ID": "9"}
    others = ("MASTER_PORT", "PL_GLOBAL_SEED", "SLURM_NTASKS", *TORCHRUN)
    traces = dict.fromkeys(others, "1") | rendezvous(1, 1, 2, 4000)
    assert scrubbed(kept | traces) == kept, "no trace is left"


def test_peer_to_peer_switched_off_is_emulation_only_where_there_are_peers() -> None:
    off = {"NCCL_P2P_DISABLE": "1"}
    assert emulations(off, {"0-1": "NV18"}) == ("NCCL_P2P_DISABLE=1 on GPUs with NVLink",)
    assert (emulations(off, {"0-1": "PHB"}), emulations({}, {"0-1": "NV18"})) == ((), ())


def test_what_may_be_a_secret_is_neither_recorded_nor_handed_to_a_tracker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = {"NCCL_P2P_DISABLE": "1", "TORCH_NCCL_BLOCKING_WAIT": "0", "OMP_NUM_THREADS": "1"}
    secret = ("NCCL_SECRET", "CUDA_TOKEN", "OMP_KEY", "PYTORCH_PASSWORD")
    for name, value in (plain | dict.fromkeys(secret, "hunter2")).items():
        monkeypatch.setenv(name, value)
    gpus = tuple(DeviceInfo("cuda", "NVIDIA H200", f"GPU-{r}", r) for r in range(2))
    monkeypatch.setattr(provenance, "shared_memory_mib", lambda: (64.0, 8.0))
    found = collect(gpus, None, {"0-1": "NV18"}, {})
    assert (found.shared_memory_mib, found.devices) == (64.0, gpus), "all, not what is free"
    assert found.environment.items() >= plain.items()
    assert found.emulated, "the switch is still seen"
    assert found.peak_tflops["bf16"] == 989.5 and collect((), None, {}, {}).peak_tflops == {}
    assert host_facts().environment == found.environment
    folder = CellFolder(tmp_path / "cell")
    recorded = RecordedCell(folder, steps=10)
    recorded.succeed()
    folder.save_provenance(dataclasses.replace(found, devices=tuple(recorded.devices)))
    planned = PlannedCell("id", "config", "cell", (), 0, 2)
    name = SweepName("11-23 14:05", "net")
    told = run_info(folder, CurrentAttempt(1, 0, None, None), planned, tmp_path, name)
    assert told.config["provenance"]["environment"] == dict(found.environment)
    written = (folder.path / "provenance.json").read_text()
    assert "hunter2" not in written + str(told) + str(host_facts())


def test_what_was_imported_is_noted_in_the_attempt_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trackers take a provenance of another time for a retry, and begin another run."""
    folder = CellFolder(tmp_path)
    folder.save_config({})
    found = collect((), None, {}, {})
    assert (found.protocol, found.started) == (records.PROTOCOL, "fresh")
    folder.save_provenance(found)
    os.utime(tmp_path / "provenance.json", ns=(1, 1))
    before = current_attempt(folder)
    monkeypatch.setattr(provenance, "module_files", lambda _: {"mine": "a digest"})
    note_imported(folder)
    assert folder.load_provenance().code["class_files"] == {"mine": "a digest"}
    assert current_attempt(folder) == before
    monkeypatch.setattr(provenance, "module_files", lambda _: {"mine": "edited", "late": "another"})
    note_imported(folder)
    assert folder.load_provenance().code["class_files"] == {"mine": "a digest", "late": "another"}


def test_a_gpu_is_current_then_capped_then_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []
    for act in ("set_device", "set_per_process_memory_fraction"):
        monkeypatch.setattr(torch.cuda, act, done.append)
    monkeypatch.setattr("scalewise.train.rank.check_computes", done.append)
    memory = {1: SimpleNamespace(total_memory=31 << 29)}
    monkeypatch.setattr(torch.cuda, "get_device_properties", memory.__getitem__)
    cpu, gpu = (RankContext(3, 1, 4, DeviceInfo(kind, "x"), 2) for kind in ("cpu", "cuda"))
    settle_device(cpu, 64.0, True)
    for cap_gib, check in ((None, True), (3.875, False), (15.5, False)):
        settle_device(gpu, cap_gib, check)
    assert done == [1, torch.device("cuda:1"), 1, 0.25, 1, 1.0]
    with pytest.raises(ConfigError, match=r"found 16, but the GPU has 15\.5 GiB"):
        settle_device(gpu, 16.0, False)
    on_hosts = [RankContext(r, 0, 4, gpu.device, hosts) for hosts in (1, 2) for r in range(4)]
    assert [one.describes_host for one in on_hosts] == [0, 0, 0, 1, 0, 1, 0, 0]


# What an exception that ends a rank is called.
def ended_by_trainer(error: BaseException) -> BaseException:
    """What leaves ``Trainer.fit`` where a training step raised ``error``."""
    try:
        try:
            raise error
        except KeyboardInterrupt:
            sys.exit(1)
    except BaseException as left:
        return left


def test_a_rank_records_the_interrupt_and_where_it_was_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error in (SystemExit(3), ValueError("no")):
        assert cause_of(ended_by_trainer(error)) is error, "any other end is what it is"
    monkeypatch.setattr(worker.os, "write", lambda descriptor, text: len(text))
    status = worker._report(CellFolder(tmp_path), 0, ended_by_trainer(KeyboardInterrupt()))
    recorded = CellFolder(tmp_path).load_rank_error(0)
    assert (status, recorded.message) == (1, "KeyboardInterrupt")
    assert any("raise error" in line for line in recorded.last_lines)
    assert recorded.raised_at is not None and __file__ in recorded.raised_at


def test_unused_parameters_are_named_with_our_key() -> None:
    """Lightning's advice is of settings that a cell does not have."""
    said = RuntimeError("Expected to have finished reduction in the prior iteration before ...")
    DDPStrategy().on_exception(said)
    assert experiment._UNUSED in str(said)
    module = pl.LightningModule()
    module.used, module.head = nn.Linear(2, 2), nn.Linear(2, 2, bias=False)
    module.used(torch.ones(2)).sum().backward()
    told = rows(experiment._unused_parameters(module, Path("a b/c")), 80)
    assert told[1].endswith(" (head.weight);")
    assert told[-1] == "  scalewise resume 'a b/c' strategy.find_unused_parameters=true"
    assert "(" not in experiment._unused_parameters(nn.Linear(2, 2), Path()).partition(";")[0]
    module.head(torch.ones(2)).sum().backward()
    assert "(" not in experiment._unused_parameters(module, Path()).partition(";")[0]


# What a rank and a Monitor import to train, and what they leave out.
PROBE = """
import gc, json, sys
from scalewise.train import import_training
import_training(lean=True)
unused = [n for n in ("scipy.signal", "matplotlib", "transformers") if n in sys.modules]
from lightning_utilities.core.imports import package_available
there_again = package_available("scipy") and package_available("matplotlib")
trains = "scalewise.train.experiment" in sys.modules
from torchmetrics.utilities import imports
trains &= all(bool(of) for name, of in vars(imports).items() if name.startswith("_TORCH_GREATER"))
frozen = gc.isenabled(), gc.get_freeze_count() > 100_000
import scalewise.train.monitor
above = ("scalewise.analysis", "scalewise.sweep", "scalewise.report")
above = [name for name in sys.modules if name.startswith(above)]
print(json.dumps([unused, above, trains, there_again, *frozen]))
"""


def test_leaves_out_what_nothing_trains_with_and_gives_it_back() -> None:
    answer = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, check=True, timeout=120
    )
    assert json.loads(answer.stdout) == [[], [], True, True, True, True]


def test_own_classes_of_a_user_get_everything() -> None:
    keys = ("model", "dataset", "optimizer")
    plain = {key: {"_target_": "scalewise.models.mlp.Mlp"} for key in keys}
    assert is_ours(plain)
    for key, target in itertools.product(keys, ("mine.Net", "scalewise_extra.Net")):
        assert not is_ours({**plain, key: {"_target_": target}})
