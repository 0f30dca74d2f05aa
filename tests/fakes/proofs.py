"""What is typed on CPUs and on GPUs alike, and what the records of it have to say."""

from collections.abc import Iterable

import pytest

from fakes.train_command import LEAN, SMALL, Finished
from scalewise.records import (
    CellFolder,
    CellResult,
    PlannedCell,
    StrategyDecision,
    find_record,
    read_metrics,
    read_steps,
)

TWINS = (
    *LEAN, "model=gpt2_tiny", "dataset=synthetic_tokens", "optimizer=adamw", "batch_size=4",
    "deterministic=true", "repeats=2", "log_every_n_steps=1", "max_steps=6",
)  # fmt: skip


def losses_of(cell: CellFolder, rank: int = 0) -> list[float | None]:
    """The training loss of every step that was logged."""
    rows = read_metrics(cell.metrics_path(rank))
    return [row.values["train_loss"] for row in rows if "train_loss" in row.values]


def check_twins(cells: Iterable[tuple[PlannedCell, CellFolder]], configurations: int) -> None:
    """Both runs of each configuration have the same losses to the last bit."""
    losses: dict[str, list[list[float | None]]] = {}
    for planned, folder in cells:
        losses.setdefault(planned.config_id, []).append(losses_of(folder))
    assert len(losses) == configurations
    for first, second in losses.values():
        assert len(set(first)) == len(first) >= 6, "a loss that does not move proves nothing"
        assert first == second


def overlap(a: CellResult, b: CellResult) -> bool:
    """Whether two cells ran at the same time."""
    return a.started_at < b.finished_at and b.started_at < a.finished_at


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
    assert attempt.finished_at - attempt.started_at < 60, "nobody waited for a time-out"
    assert result.started_at >= attempt.finished_at, "the interrupted part is no part of its time"
    for rank in (0, 1):
        expected = losses_of(whole, rank)
        assert len(set(expected)) == len(expected) == STEPS, "a loss that stays proves nothing"
        assert losses_of(killed, rank) == pytest.approx(expected, rel=rel, abs=0)
        steps = read_steps(killed.steps_path(rank), rank)
        assert (steps.rows["step"].tolist(), len(steps.timed())) == (list(range(STEPS)), STEPS - 2)


CHOSEN_STEPS = 15
"""Of what ``strategy=auto`` chose, on whatever it ran."""
AUTO_STRATEGY = (
    *SMALL, "strategy=auto", "strategy.devices=2", "strategy.probe_steps=12",
    "strategy.probe_warmup_steps=2", "strategy.probe_repeats=1", f"max_steps={CHOSEN_STEPS}",
)  # fmt: skip


def check_decision(run: Finished) -> None:
    """Candidates were tried shortly, and the better one trained and says why."""
    assert run.status == 0, run.err
    said = [s for s in (run.out + run.err).splitlines() if s.startswith("strategy ")]
    assert len(said) == 3
    decisions = [(c, find_record(f.path, StrategyDecision)) for c, f in run.cells().values()]
    probes = [cell for cell, decision in decisions if decision is None]
    ((trained, decision),) = [(c, d) for c, d in decisions if d is not None]
    assert sorted(cell.devices or 0 for cell in probes) == [1, 2]
    assert trained.devices == (1 if decision.chosen == "single" else 2)
    assert decision.lines()[1] in said[1]
    assert decision.rule is not None and decision.rule.says == "single"
    result = run.sweep.cell(trained.name).load_result()
    assert (result.strategy, result.ranks[0].steps_completed) == (decision.chosen, CHOSEN_STEPS)
    assert "Strategy chosen by measurement" in (run.sweep.report_path / "details.md").read_text()
