"""Four devices rehearsed on a host that is told it has one."""

import sys
from dataclasses import replace

import pytest

from fakes.train_command import Finished, Train
from scalewise.analysis import analyse, load_sweep
from scalewise.host import usable_cores

pytestmark = pytest.mark.slow


def test_devices_that_are_not_there_are_rehearsed_and_said_to_be(train: Train) -> None:
    done = train(
        "-m", "devices=1,4", "strategy=ddp,fsdp", "rehearse=custom", "rehearse.latency_us=50",
        "rehearse.bus_gb_s=5", "hardware=cpu", f"hardware.cores_per_device={len(usable_cores())}",
        "max_steps=60", "repeats=1", "tracking=none",
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

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

ranks = int(os.environ.get("WORLD_SIZE", 1))
model, each = torch.nn.Linear(64, 10), 64 // ranks
if ranks > 1:
    dist.init_process_group("gloo")
    WRAP
optimizer = torch.optim.SGD(model.parameters(), 0.01)
while True:
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(torch.randn(each, 64)), torch.zeros(each).long())
    loss.backward()
    optimizer.step()
"""


def run_script(train: Train, wrap: str, *words: str) -> Finished:
    (train.cwd / "train.py").write_text(SCRIPT.replace("WRAP", wrap))
    run = replace(train, script=(sys.executable, "-m", "scalewise", "run"))
    return run(
        *words, "--link", "custom", "--repeats", "1", "--time", "0.5s", "--set",
        "rehearse.latency_us=50", "--set", "rehearse.bus_gb_s=5", "--set", "hardware=cpu", "--set",
        f"hardware.cores_per_device={len(usable_cores())}", "--", "python", "train.py",
    )  # fmt: skip


def test_a_script_with_ddp_is_one_of_four_ranks_and_said_to_be_rehearsed(train: Train) -> None:
    done = run_script(train, "model = DistributedDataParallel(model)", "--rehearse", "4")
    assert done.status == 0, done.err
    assert "train.py torchrun x4, rehearsed over custom: " in done.out
    found = analyse(load_sweep(done.sweep.path))
    assert [c.label for c in found.measured] == ["train.py single x1"]
    (one,) = found.rehearsals
    (rank,) = one.config.rank_summaries
    assert rank.rehearsed is not None and rank.communication is not None
    assert (rank.rehearsed.ranks, rank.rehearsed.source) == (4, "50 us and 5 GB/s, as typed")
    assert (rank.largest_step_samples, rank.gradient_bytes) == (16, 4 * 65 * 10)


@pytest.mark.parametrize(
    ("wrap", "said"),
    [
        ("fully_shard(model)", "found no DistributedDataParallel after 3 steps"),
        ("dist.new_group([0, 1])", "found a further process group"),
    ],
)
def test_a_script_without_ddp_alone_is_refused_in_one_line(
    train: Train, wrap: str, said: str
) -> None:
    done = run_script(train, wrap, "--devices", "4", "--rehearse", "4")
    (attempt,) = (one for _, cell in done.cells().values() for one in cell.attempts())
    assert (attempt.cause, done.status) == ("config", 1)
    assert said in attempt.message
    assert len(attempt.message.splitlines()) == 1
