"""``scalewise run``: scripts that know nothing of scalewise, on one rank and on two."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.train_command import Finished, Train
from scalewise.analysis.balance import audit_shards
from scalewise.records import BACKWARD_LOSS, CellFolder, read_shard, read_steps

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

DDP = """
import json, os, sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from sibling import BATCH


def main() -> None:
    world = int(os.environ.get("WORLD_SIZE", 1))
    if world > 1:
        dist.init_process_group("gloo")
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    seen = {name: os.environ.get(name) for name in ("RANK", "WANDB_MODE", "PYTHONPATH")}
    (out / f"rank{os.environ.get('RANK')}.json").write_text(json.dumps([__name__, seen]))
    data = TensorDataset(torch.randn(1024, 64), torch.randint(0, 10, (1024,)))
    sampler = DistributedSampler(data) if world > 1 else None
    loader = DataLoader(data, BATCH, sampler=sampler, num_workers=1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    if world > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    while True:
        for x, y in loader:
            try:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
            except Exception:
                print("a bad batch")


if __name__ == "__main__":
    main()
"""


@pytest.fixture(scope="module")
def ran(shared_train: Train) -> Finished:
    work = shared_train.cwd
    (work / "train.py").write_text(DDP)
    (work / "sibling.py").write_text("BATCH = 16\n")
    run = replace(shared_train, script=(sys.executable, "-m", "scalewise", "run"))
    return run("--devices", "1,2", "--repeats", "1", "--time", "0.5s", "--set",
               "warmup_steps=5", "--", "python", "train.py", "out/{run}")  # fmt: skip


def cell(ran: Finished, devices: int) -> CellFolder:
    (found,) = (c for planned, c in ran.cells().values() if planned.devices == devices)
    return found


def test_both_numbers_of_devices_are_measured_and_compared(ran: Finished) -> None:
    assert ran.status == 0, ran.err
    assert "train.py torchrun x2" in ran.out
    assert "No cell" not in ran.out


@pytest.mark.parametrize("devices", [1, 2])
def test_ranks_end_alike_feed_what_they_say_and_are_timed(ran: Finished, devices: int) -> None:
    result = cell(ran, devices).load_result()
    last = {rank.length.announced_step for rank in result.ranks if rank.length}
    assert {rank.steps_completed for rank in result.ranks} == last
    assert (result.per_device_batch_size, result.global_batch_size) == (16, 16 * devices)
    assert all(rank.batch_shape == (16, 64) for rank in result.ranks)
    assert all(rank.own_optimizer == "SGD" for rank in result.ranks)
    assert all(rank.parameters_changed for rank in result.ranks)
    for rank in range(devices):
        series = read_steps(cell(ran, devices).steps_path(rank), rank).timed()
        for phase in ("data_wait", "forward", "backward", "optimizer"):
            assert (series.column(phase)[:10] > 0).all()
        assert (series.column("exposed_comm")[:10] > 0).all() == (devices == 2)


def test_replicas_are_compared_their_gradients_counted_their_samples_audited(ran: Finished) -> None:
    first, second = cell(ran, 2).load_result().ranks
    assert first.replica_fingerprint == pytest.approx(second.replica_fingerprint)
    assert first.gradient_bytes == 4 * (64 * 64 + 64 + 64 * 10 + 10)
    assert first.communication is not None and first.communication.rounds_per_step == 1
    shards = [read_shard(cell(ran, 2).shard_path(rank), rank) for rank in (0, 1)]
    assert audit_shards(shards, 2).verdict == "sharded"
    for rank in (first, second):
        assert "shard_audit" not in rank.missing
        assert rank.metrics[BACKWARD_LOSS] == pytest.approx(2.3, abs=0.5)


@pytest.mark.parametrize("devices", [1, 2])
def test_a_script_sees_what_it_would_see(ran: Finished, shared_train: Train, devices: int) -> None:
    name = "-".join(cell(ran, devices).path.parts[-2:])
    for rank in range(devices):
        told = str(rank) if devices > 1 else None
        written = shared_train.cwd / "out" / name / f"rank{told}.json"
        module, seen = json.loads(written.read_text())
        assert (module, (seen["RANK"], seen["WANDB_MODE"])) == ("__main__", (told, "offline"))
        assert "a bad batch" not in cell(ran, devices).log_path(rank, "out").read_text()


SHORT = """
import argparse, os, sys
import torch
import torch.multiprocessing as mp

def train(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    if how == "monitored":
        import scalewise
        with scalewise.monitor(model, optimizer, folder="records") as m:
            steps(model, optimizer, m(batches), m.log)
    else:
        steps(model, optimizer, batches)

def steps(model, optimizer, batches, log=lambda name, loss: None):
    for batch in batches:
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        log("loss", loss)

def endless(rank, model):
    train(model, iter(lambda: torch.ones(2, 3), None))

how = sys.argv[1]
if __name__ == "__main__":
    if how == "torchrun": int(os.environ["LOCAL_RANK"])
    if how == "asks": argparse.ArgumentParser().parse_args(["--lr", "1"])
    if how == "few": print("too few GPUs"); sys.exit()
    model = torch.nn.Linear(3, 3)
    if how == "fork":
        os.fork()
        endless(0, model)
    if how == "spawn":
        model.share_memory()
        context = mp.get_context("spawn")
        trainers = [context.Process(target=endless, args=(rank, model)) for rank in range(2)]
        [one.start() for one in trainers]
        [one.join() for one in trainers]
    if how == "monitored" and "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(model)
    train(model, [torch.ones(2, 3)] * (1 if how == "once" else 30))
    if how == "raises": raise ValueError("a bad end")
    if how == "leaves": os._exit(0)
"""
OWN = "found training in a process that the script itself started"

ENDS = [
    ("1", {"raises": "ValueError: a bad end"}),
    ("1", {"leaves": "left by os._exit after", "asks": "unrecognized arguments: --lr 1",
           "few": "'too few GPUs'", "spawn": OWN, "fork": OWN}),
    ("2", {"alone": "found no process group after 3 steps, so each of 2 processes trains alone",
           "monitored": ""}),
    ("1", {"torchrun": "the script asks for the variables of torchrun"}),
    ("1", {"once": "no timed step: all were warm-up", "monitored": ""}),
]  # fmt: skip
"""Devices, and how scripts of one sweep end: they start as those of ``scalewise run`` do."""


@pytest.mark.parametrize(("devices", "ends"), ENDS, ids=[",".join(ends) for _, ends in ENDS])
def test_how_a_script_ends_is_said(train: Train, devices: str, ends: dict[str, str]) -> None:
    """Trainers that never end are ended; what a monitored script logs is recorded once."""
    (train.cwd / "short.py").write_text(SHORT)
    commands = ",".join(f"'short.py {how}'" for how in ends)
    sweep = replace(train, script=(sys.executable, "-m", "scalewise", "train"))
    ran = sweep("-m", "experiment=script", f"script.command={commands}", f"devices={devices}",
                "repeats=1")  # fmt: skip
    said = " ".join((ran.out + ran.err).split())
    assert [how for how, line in ends.items() if line not in said] == []
    assert (ran.status == 0) == bool({"torchrun", "once"} & {*ends})
    assert ("scalewise resume" in ran.err) == ("raises" in ends), "what comes back is not resumed"
    assert not (train.cwd / "records").exists() and "steps were timed" not in said
    assert train.processes() == {}
    cells = {c.load_config()["script"]["command"].split()[1]: c for _, c in ran.cells().values()}
    assert cells.keys() == ends.keys()
    for how in {"spawn", "fork"} & cells.keys():
        (attempt,) = cells[how].attempts()
        assert OWN in attempt.message
    if "monitored" in cells:
        result = cells["monitored"].load_result()
        assert result.ranks[0].metrics.keys() >= {"loss", BACKWARD_LOSS}
        assert len(result.ranks) == int(devices)


def test_a_finished_sweep_of_a_script_is_resumed(ran: Finished, shared_train: Train) -> None:
    resume = replace(shared_train, script=(sys.executable, "-m", "scalewise", "resume"))
    again = resume(str(Path("multirun") / ran.sweep.path.name), "sweep.dry_run=true")
    assert again.status == 0, again.err
    assert "train.py" in again.out + again.err
    assert "found precision=" in resume(str(ran.sweep.path), "precision=fp32,bf16-mixed").err
