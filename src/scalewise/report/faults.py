"""What was wrong with runs that finished, in sentences."""

from __future__ import annotations

from collections.abc import Iterator

from scalewise.analysis.balance import LoadBalance, advice
from scalewise.analysis.runs import Configuration
from scalewise.analysis.summary import Analysis
from scalewise.report.gathered import by_text

UNEVEN = frozenset({"straggler", "uneven shards"})
"""Limits by which the diagnosis accuses a rank."""
_POWER_CAP = "power cap"
"""As the device series name it."""


def lines(analysis: Analysis) -> list[str]:
    """What was wrong with runs that finished: shards, balance, throttling, damaged records.

    A power cap is no fault: it stands among the doubts.
    """
    found = []
    for config in analysis.measured:
        limits = {found.limit for found in analysis.diagnoses.get(config.config_id, ())}
        # A grade alone may be luck of one run; a fault is what holds over the runs.
        uneven = bool(limits & UNEVEN)
        for run in config.runs:
            name = run.cell.planned.name
            if run.shards and run.shards.is_fault:
                found.append((name, f"{run.shards.verdict}: {run.shards.explanation}"))
            if uneven and run.balance and run.balance.grade in ("fair", "poor"):
                found.append((name, f"{run.balance.explanation}; {_advice(config, run.balance)}"))
        found += held_back(config, at_power_cap=False)
    for cell in analysis.sweep.cells:
        for series in cell.devices:
            # Throttling stands above, from the samples themselves.
            alerts = [a for a in series.alerts if a.condition != "throttling"]
            found += [(cell.planned.name, alert.text) for alert in alerts]
        found += [(cell.planned.name, problem) for problem in cell.problems]
    return [*analysis.sweep.problems, *by_text(found)]


def held_back(config: Configuration, *, at_power_cap: bool) -> Iterator[tuple[str, str]]:
    """Cells and what slowed a GPU of theirs, with how often over all runs of the configuration.

    Either what the power cap alone slowed, which is where a GPU that works hard is to be, or what
    anything else did.
    """
    seen: dict[str, list[tuple[str, float | None]]] = {}
    for run in config.runs:
        for device in run.usage.devices if run.usage else ():
            reasons = device.throttle_reasons
            if reasons and (set(reasons) == {_POWER_CAP}) == at_power_cap:
                text = f"{device.label} was held back by {', '.join(reasons)}"
                seen.setdefault(text, []).append((run.cell.planned.name, device.throttled_share))
    for text, cells in seen.items():
        percents = sorted(
            {f"{100 * share:.0f}" for _, share in cells if share is not None}, key=int
        )
        ends = " to ".join(dict.fromkeys((percents[0], percents[-1]))) if percents else ""
        often = f" in {ends} % of its samples" if ends else ""
        no_fault = ", no fault in a GPU that works hard" if at_power_cap else ""
        yield from ((name, f"{text}{often}{no_fault}") for name, _ in cells)


def _advice(config: Configuration, balance: LoadBalance) -> str:
    return advice(balance.grade, balance.slowest_rank, on_cpu=config.is_cpu)
