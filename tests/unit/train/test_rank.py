"""The environment ranks are started in, and who else may have started this process."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from fakes.recorded_cell import RecordedCell
from scalewise.config import DdpConfig
from scalewise.doctor.host_facts import host_facts
from scalewise.host import foreign_launch, rendezvous, scrubbed
from scalewise.records import PROTOCOL, CellFolder, CurrentAttempt, DeviceInfo, PlannedCell
from scalewise.tracking.tracker import SweepName, run_info
from scalewise.train import collect
from scalewise.train.provenance import emulations


def test_no_trace_of_another_launcher_is_left() -> None:
    kept = {"PATH": "/bin", "SLURM_JOB_ID": "9"}
    others = ("MASTER_PORT", "RANK", "WORLD_SIZE", "PL_GLOBAL_SEED", "SLURM_NTASKS")
    traces = dict.fromkeys((*others, "TORCHELASTIC_RUN_ID"), "1") | rendezvous(1, 1, 2, 4000)
    assert scrubbed(kept | traces) == kept


TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "a"}
SRUN = {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "0"}


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, None),
        ({"RANK": "1", "WORLD_SIZE": "2"}, None),
        (TORCHRUN, ("torchrun", 1, 2)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, None),
        (SRUN, ("srun", 3, 4)),
        (TORCHRUN | SRUN, ("srun", 3, 4)),
    ],
)
def test_a_foreign_launch_is_recognised(
    environment: dict[str, str], found: tuple[str, int, int] | None
) -> None:
    assert foreign_launch(environment) == found


def test_the_backend_follows_the_device() -> None:
    config = DdpConfig("ddp", "ddp")
    assert config.backend_for("cuda") == "nccl"
    assert config.backend_for("cpu") == "gloo"
    with pytest.raises(ValueError, match=r"strategy\.backend: found nccl on a CPU host"):
        DdpConfig("ddp", "ddp", backend="nccl").backend_for("cpu")


def test_peer_to_peer_switched_off_is_emulation_only_where_there_are_peers() -> None:
    off = {"NCCL_P2P_DISABLE": "1"}
    assert emulations(off, {"0-1": "NV18"}) == ("NCCL_P2P_DISABLE=1 on GPUs with NVLink",)
    assert emulations(off, {"0-1": "PHB"}) == ()
    assert emulations({}, {"0-1": "NV18"}) == ()


def test_what_may_be_a_secret_is_neither_recorded_nor_handed_to_a_tracker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NCCL_SECRET", "CUDA_TOKEN", "OMP_KEY", "PYTORCH_PASSWORD"):
        monkeypatch.setenv(name, "hunter2")
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    monkeypatch.setenv("TORCH_NCCL_BLOCKING_WAIT", "0")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    gpus = tuple(DeviceInfo("cuda", "NVIDIA H200", f"GPU-{r}", r) for r in range(2))
    found = collect(gpus, None, {"0-1": "NV18"}, command=())
    assert found.environment.items() >= {
        "NCCL_P2P_DISABLE": "1", "TORCH_NCCL_BLOCKING_WAIT": "0", "OMP_NUM_THREADS": "1"
    }.items()  # fmt: skip
    assert found.emulated, "the switch is still seen"
    assert host_facts().environment == found.environment
    folder = CellFolder(tmp_path / "cell")
    recorded = RecordedCell(folder)
    recorded.train(10)
    recorded.succeed()
    folder.save_provenance(dataclasses.replace(found, devices=tuple(recorded.devices)))
    planned = PlannedCell("id", "config", "cell", (), 0, 2)
    attempt = CurrentAttempt(1, 0, None, None)
    told = run_info(
        folder, folder.load_config(), attempt, planned, tmp_path, SweepName("11-23 14:05", "net")
    )
    assert told.config["provenance"]["environment"] == dict(found.environment)
    written = (folder.path / "provenance.json").read_text()
    assert "hunter2" not in written + str(told) + str(host_facts())


def test_what_records_now_says_by_which_protocol() -> None:
    assert collect((), None, {}).protocol == PROTOCOL
