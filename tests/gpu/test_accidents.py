"""Ranks that die, hang or run out of memory amid NCCL: one sweep in which each happens once."""

import pytest

from fakes.gpus import REHEARSES, in_use, needs, wait_until_left
from fakes.proofs import RESTARTING, check_ran_anew
from fakes.train_command import Finished, Train
from scalewise.records import CellFolder, Ending

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400), needs(2, on_cpu=True)]

FAULTS = ("none", "sigkill_once", "allocation", "hang")
COLLECTIVE_S = 10
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
    folders = {c.load_config()["model"]["fault"]: c for _, c in sweep.cells().values()}
    return folders[fault]


def only_attempt(folder: CellFolder) -> Ending:
    (attempt,) = folder.attempts()
    return attempt


def test_a_killed_rank_is_named_and_its_cell_runs_anew(sweep: Finished) -> None:
    killed = cell(sweep, "sigkill_once")
    # Sums of floats may be taken in another order; a mask of dropout drawn anew is off by far more.
    check_ran_anew(cell(sweep, "none"), killed, rel=1e-3)
    attempt = only_attempt(killed)
    assert attempt.finished_at - attempt.started_at < START_S, "nobody waited for a time-out"
    assert "retry 1 of 1" in sweep.err
    compression = killed.load_config()["strategy"]["compression"]
    assert compression == "bf16"


def test_memory_that_runs_out_on_one_rank_ends_the_other_and_comes_with_advice(
    sweep: Finished,
) -> None:
    folder = cell(sweep, "allocation")
    attempt = only_attempt(folder)
    assert (attempt.outcome, attempt.cause, attempt.rank) == ("failed", "oom", 1)
    assert "; what needs less memory: " in attempt.message
    if not REHEARSES:
        assert "CUDA out of memory" in attempt.message
    assert attempt.finished_at - attempt.started_at < START_S, "nobody waited for a time-out"


def test_a_rank_that_does_not_come_to_a_collective_is_named_with_its_stack(sweep: Finished) -> None:
    """NCCL's own watchdog, whose words tell who gave up."""
    folder = cell(sweep, "hang")
    attempt = only_attempt(folder)
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
