"""A cell whose rank 1 is killed once: what is typed, and what its records have to say."""

import pytest

from fakes.twins import losses_of
from scalewise.records import CellFolder, read_steps

STEPS = 30
RESTARTING = (
    "tracking=none", "validation=never", "strategy=ddp", "model._target_=mine.Faulty",
    "+model.input_dropout=0.3", "+model.at=17", "dataset._target_=mine.Data", "batch_size=16",
    f"max_steps={STEPS}", "warmup_steps=2", "log_every_n_steps=1",
)  # fmt: skip


def check_ran_anew(whole: CellFolder, killed: CellFolder, rel: float) -> None:
    """``killed`` ran from its first step on, as if nothing had happened.

    ``rel`` is how far its losses may be off those of ``whole``, as a share; 0 for not at all.
    """
    (attempt,) = killed.attempts()
    result = killed.load_result()
    assert (attempt.cause, attempt.rank, result.attempt) == ("signal", 1, 2)
    assert attempt.message.startswith("rank 1 was ended by SIGKILL")
    assert result.started_at >= attempt.finished_at, "the interrupted part is no part of its time"
    for rank in (0, 1):
        expected = losses_of(whole, rank)
        assert len(set(expected)) == len(expected) == STEPS, "a loss that stays proves nothing"
        assert losses_of(killed, rank) == pytest.approx(expected, rel=rel, abs=0)
        steps = read_steps(killed.steps_path(rank), rank)
        assert steps.rows["step"].tolist() == list(range(STEPS))
        assert len(steps.timed()) == STEPS - 2
