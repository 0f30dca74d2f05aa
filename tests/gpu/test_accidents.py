"""Ranks that die, hang or run out of memory amid NCCL: one sweep in which each happens once.

And a GPU that never ends a captured step.
"""

import pytest

from fakes.gpus import REHEARSES, in_use, needs, wait_until_left
from fakes.proofs import RESTARTING, check_ran_anew
from fakes.train_command import LEAN, Finished, Train
from scalewise.records import CellFolder

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400), needs(2, on_cpu=True)]

FAULTS = ("none", "sigkill_once", "allocation", "hang")
COLLECTIVE_S, REPLAY_HANG_S = 10, 20
START_S = 60
"""More than ranks need to start, import and reach the fault."""
GIVES_UP_S = 45
"""More than NCCL's watchdog needs, after its time-out, to dump what it knows and end the rank."""


@pytest.fixture(scope="module")
def sweep(train: Train) -> Finished:
    """Gradients go as bf16; the cell whose rank is killed runs anew."""
    before = in_use()
    run = train(
        *RESTARTING, "strategy.compression=bf16", f"+model.fault={','.join(FAULTS)}",
        f"sweep.collective_timeout_s={COLLECTIVE_S}", "-m",
    )  # fmt: skip
    wait_until_left(before)
    return run


def cell(sweep: Finished, fault: str) -> CellFolder:
    return {c.load_config()["model"]["fault"]: c for _, c in sweep.cells().values()}[fault]


def test_a_killed_rank_is_named_and_its_cell_runs_anew(sweep: Finished) -> None:
    killed = cell(sweep, "sigkill_once")
    # Sums of floats may be taken in another order; a mask of dropout drawn anew is off by far more.
    check_ran_anew(cell(sweep, "none"), killed, rel=1e-3)
    assert "retry 1 of 1" in sweep.err
    assert killed.load_config()["strategy"]["compression"] == "bf16"


def test_memory_that_runs_out_on_one_rank_ends_all_and_comes_with_advice(sweep: Finished) -> None:
    (attempt,) = cell(sweep, "allocation").attempts()
    assert (attempt.outcome, attempt.cause, attempt.rank) == ("failed", "oom", 1)
    assert "; what needs less memory: " in attempt.message
    if not REHEARSES:
        assert "CUDA out of memory" in attempt.message
    assert attempt.finished_at - attempt.started_at < START_S, "nobody waited for a time-out"


def test_a_rank_that_does_not_come_to_a_collective_is_named_with_its_stack(sweep: Finished) -> None:
    """NCCL's own watchdog, whose words tell who gave up."""
    folder = cell(sweep, "hang")
    (attempt,) = folder.attempts()
    assert (attempt.outcome, attempt.cause, attempt.rank) == ("failed", "hang", 1), attempt
    assert attempt.message.startswith(
        f"rank 0 waited {COLLECTIVE_S} s (sweep.collective_timeout_s) in a collective for rank 1, "
        "which did not enter it"
    )
    assert attempt.finished_at - attempt.started_at < START_S + COLLECTIVE_S + GIVES_UP_S
    waited, absent = (folder.log_path(rank, "err").read_text() for rank in (0, 1))
    assert "in fail" in absent, "where the absent rank is"
    assert "most recent call" in waited, "where the waiting rank was"


def test_the_sweep_went_on_around_them(sweep: Finished, train: Train) -> None:
    assert sweep.status == 1
    assert {fault: cell(sweep, fault).is_done() for fault in FAULTS} == {
        "none": True, "sigkill_once": True, "allocation": False, "hang": False,
    }  # fmt: skip
    assert "Traceback" not in sweep.err
    assert train.processes() == {}, "not even those that a rank moved into sessions of their own"


@needs(2)
def test_a_replay_that_never_ends_is_found_by_the_heartbeat(train: Train) -> None:
    """NCCL's watchdog does not see it."""
    before = in_use()
    run = train(
        *LEAN, "strategy=ddp", "execution=cudagraph", "model._target_=mine.StuckWhenReplayed",
        "dataset._target_=mine.Data", "+dataset.train=4096", "batch_size=16", "validation=never",
        "max_steps=2000", f"sweep.hang_timeout_s={REPLAY_HANG_S}", "sweep.grace_s=1",
    )  # fmt: skip
    assert run.status == 1, run.err
    folder = run.only_cell()
    (attempt,) = folder.attempts()
    assert attempt.cause == "hang", attempt
    assert "no rank made a step for 2" in attempt.message
    assert attempt.finished_at - attempt.started_at < START_S + REPLAY_HANG_S
    for rank in (0, 1):
        stacks = folder.log_path(rank, "err").read_text()
        assert "most recent call first" in stacks, f"where rank {rank} waits for its GPU"
    # A kernel that would run for an hour goes with its process.
    wait_until_left(before)
