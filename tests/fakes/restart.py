"""A cell whose rank 1 is killed once: what is typed, and what its records have to say."""

import pytest

from scalewise.records import CellFolder, read_metrics, read_steps

STEPS, KILLED_AT, EVERY = 45, 37, 10
"""Of 20 batches an epoch: the checkpoint due at step 20, an epoch's last, is made at 21."""
RESUMED_AT = 31
WARMUP = 2

RESTARTING = (
    "tracking=none",
    "validation=never",
    "strategy=ddp",
    "model._target_=mine.Faulty",
    "+model.input_dropout=0.3",
    # A rank that goes on from its checkpoint makes fewer calls than that.
    f"+model.at={KILLED_AT}",
    "dataset._target_=mine.Data",
    "batch_size=16",
    f"max_steps={STEPS}",
    f"warmup_steps={WARMUP}",
    "log_every_n_steps=1",
    f"checkpoint.every_n_steps={EVERY}",
)


def check_resumed(whole: CellFolder, killed: CellFolder, rel: float) -> None:
    """``killed`` went on from its checkpoint as if nothing had happened.

    ``rel`` is how far its losses may be off those of ``whole``, as a share; 0 for not at all.
    """
    (attempt,) = killed.attempts()
    result = killed.load_result()
    assert (attempt.cause, attempt.rank, result.attempt) == ("signal", 1, 2)
    assert attempt.message.startswith("rank 1 was ended by SIGKILL")
    assert result.started_at >= attempt.finished_at, "the interrupted part is no part of its time"
    for rank in (0, 1):
        places, losses = _curve(killed, rank)
        expected_places, expected = _curve(whole, rank)
        assert places == expected_places
        assert len(set(expected)) == len(expected) == STEPS, "a loss that stays proves nothing"
        assert losses == pytest.approx(expected, rel=rel, abs=0)
        summary = killed.load_rank(rank)
        assert summary.resumed_at_step == RESUMED_AT
        assert summary.steps_completed == whole.load_rank(rank).steps_completed == STEPS
        assert summary.samples_fed == whole.load_rank(rank).samples_fed
        steps = read_steps(killed.steps_path(rank), rank)
        assert steps.rows["step"].tolist() == list(range(RESUMED_AT, STEPS))
        assert len(steps.timed()) == STEPS - RESUMED_AT - WARMUP, "it warms up anew"
        assert whole.load_rank(rank).resumed_at_step is None


def _curve(cell: CellFolder, rank: int) -> tuple[list[tuple[int, int, int]], list[float | None]]:
    rows = [r for r in read_metrics(cell.metrics_path(rank)) if "train_loss" in r.values]
    return [(r.step, r.epoch, r.samples) for r in rows], [r.values["train_loss"] for r in rows]
