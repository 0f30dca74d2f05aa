"""``strategy=auto`` from the command line: short cells, three lines of decision, training."""

from __future__ import annotations

import pytest

from fakes.train_command import SMALL, Train
from scalewise.host import usable_cores
from scalewise.records import load_decision


@pytest.mark.slow
@pytest.mark.skipif(len(usable_cores()) < 2, reason="needs two cores")
def test_the_better_strategy_is_trained_and_says_why(train: Train) -> None:
    run = train(
        *SMALL,
        "strategy=auto",
        "strategy.devices=2",
        "strategy.probe_steps=12",
        "strategy.probe_warmup_steps=2",
        "strategy.probe_repeats=1",
        "max_steps=15",
        "hardware=cpu",
    )
    assert run.status == 0, run.err
    said = [s for s in (run.out + run.err).splitlines() if s.startswith("strategy ")]
    assert len(said) == 3
    decisions = [(c, load_decision(folder.path)) for c, folder in run.cells().values()]
    probes = [cell for cell, decision in decisions if decision is None]
    ((trained, decision),) = [(c, d) for c, d in decisions if d is not None]
    assert sorted(cell.devices or 0 for cell in probes) == [1, 2]
    assert trained.devices == (1 if decision.chosen == "single" else 2)
    assert decision.lines()[1] in said[1]
    assert decision.rule is not None and decision.rule.says == "single"
    result = run.sweep.cell(trained.name).load_result()
    assert result.strategy == decision.chosen
    assert result.ranks[0].steps_completed == 15
    report = (run.sweep.report_path / "report.md").read_text()
    assert "Strategy chosen by measurement" in report
