"""What ``strategy=auto`` leaves behind, on whatever it ran."""

from fakes.train_command import SMALL, Finished
from scalewise.records import StrategyDecision, find_record

STEPS = 15
AUTO_STRATEGY = (
    *SMALL, "strategy=auto", "strategy.devices=2", "strategy.probe_steps=12",
    "strategy.probe_warmup_steps=2", "strategy.probe_repeats=1", f"max_steps={STEPS}",
)  # fmt: skip


def check_decision(run: Finished) -> None:
    """Candidates were tried shortly, and the better one trained and says why."""
    assert run.status == 0, run.err
    said = [s for s in (run.out + run.err).splitlines() if s.startswith("strategy ")]
    assert len(said) == 3
    decisions = [
        (c, find_record(folder.path, StrategyDecision)) for c, folder in run.cells().values()
    ]
    probes = [cell for cell, decision in decisions if decision is None]
    ((trained, decision),) = [(c, d) for c, d in decisions if d is not None]
    assert sorted(cell.devices or 0 for cell in probes) == [1, 2]
    assert trained.devices == (1 if decision.chosen == "single" else 2)
    assert decision.lines()[1] in said[1]
    assert decision.rule is not None and decision.rule.says == "single"
    result = run.sweep.cell(trained.name).load_result()
    assert result.strategy == decision.chosen
    assert result.ranks[0].steps_completed == STEPS
    report = (run.sweep.report_path / "details.md").read_text()
    assert "Strategy chosen by measurement" in report
