"""Four devices rehearsed on a host that is told it has one."""

import sys
from dataclasses import replace

import pytest

from fakes.train_command import LEAN, Finished, Train
from scalewise.analysis import analyse, load_sweep
from scalewise.host import usable_cores

pytestmark = pytest.mark.slow


def test_devices_that_are_not_there_are_rehearsed_and_said_to_be(train: Train) -> None:
    done = train(
        "-m", *LEAN, "devices=1,4", "strategy=ddp,fsdp", "rehearse=custom", *LINK, "repeats=1",
        "validation=never", "log_every_n_steps=4",
    )  # fmt: skip
    assert done.status == 0, done.err
    assert "rehearse: one rank of N on this host, the others emulated over custom" in done.err
    assert "medium ddp x4, rehearsed over custom: " in done.out
    assert "cannot tell" in done.out
    found = analyse(load_sweep(done.sweep.path))
    assert [c.label for c in found.measured] == ["medium single x1"]
    labels = {one.config.label for one in found.rehearsals}
    assert labels == {f"medium {kind} x4, rehearsed over custom" for kind in ("ddp", "fsdp")}
    for one in found.rehearsals:
        (rank,) = one.config.rank_summaries
        assert rank.rehearsed is not None
        assert (rank.rehearsed.ranks, rank.rehearsed.source) == (4, "50 us and 5 GB/s, as typed")
        assert (rank.largest_step_samples, rank.parameters_total) == (32, 54_403)
        assert rank.metrics["train_loss"] is not None


SCRIPT = """
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

how = sys.argv[1]
ranks = int(os.environ.get("WORLD_SIZE", 1))
model, each = torch.nn.Linear(64, 10), 64 // ranks
if ranks > 1:
    dist.init_process_group("gloo")
    if how == "replicates": model = DistributedDataParallel(model)
    if how == "shards": fully_shard(model)
    if how == "groups": dist.new_group([0, 1])
optimizer = torch.optim.SGD(model.parameters(), 0.01)
while True:
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(torch.randn(each, 64)), torch.zeros(each).long())
    loss.backward()
    optimizer.step()
"""
LINK = ("rehearse.latency_us=50", "rehearse.bus_gb_s=5", "hardware=cpu",
        f"hardware.cores_per_device={len(usable_cores())}")  # fmt: skip


def run_script(train: Train, *words: str) -> Finished:
    (train.cwd / "train.py").write_text(SCRIPT)
    return replace(train, script=(sys.executable, "-m", "scalewise"))(*words)


def test_a_script_with_ddp_is_one_of_four_ranks_and_said_to_be_rehearsed(train: Train) -> None:
    settings = (word for one in LINK for word in ("--set", one))
    done = run_script(
        train, "run", "--rehearse", "4", "--link", "custom", "--repeats", "1", "--time", "0.5s",
        *settings, "--", "python", "train.py", "replicates",
    )  # fmt: skip
    assert done.status == 0, done.err
    assert "train.py torchrun x4, rehearsed over custom: " in done.out
    found = analyse(load_sweep(done.sweep.path))
    assert [c.label for c in found.measured] == ["train.py single x1"]
    (one,) = found.rehearsals
    (rank,) = one.config.rank_summaries
    assert rank.rehearsed is not None and rank.communication is not None
    assert (rank.rehearsed.ranks, rank.rehearsed.source) == (4, "50 us and 5 GB/s, as typed")
    assert (rank.largest_step_samples, rank.gradient_bytes) == (16, 4 * 65 * 10)


def test_a_script_without_ddp_alone_is_refused_in_one_line(train: Train) -> None:
    said = {
        "shards": "found no DistributedDataParallel after 3 steps",
        "groups": "found a further process group",
    }
    commands = ",".join(f"'python train.py {how}'" for how in said)
    done = run_script(
        train, "train", "-m", "experiment=script", f"script.command={commands}", "devices=4",
        "rehearse=custom", *LINK,
    )  # fmt: skip
    assert done.status == 1, done.err
    assert len(done.cells()) == 2
    for _, cell in done.cells().values():
        (attempt,) = cell.attempts()
        assert attempt.cause == "config"
        assert said[cell.load_config()["script"]["command"].split()[-1]] in attempt.message
        assert len(attempt.message.splitlines()) == 1
