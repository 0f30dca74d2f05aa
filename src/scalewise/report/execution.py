"""How steps were really executed, where that is not what was asked for."""

from __future__ import annotations

from collections.abc import Iterator

from scalewise.analysis.runs import Configuration


def fallbacks(config: Configuration) -> Iterator[str]:
    """One line for each reason why a run of ``config`` did not execute as requested."""
    reasons: dict[str, int] = {}
    for run in config.runs:
        result = run.cell.result
        executed = result.ranks[0].execution if result is not None else None
        if executed is not None and executed.fell_back_because is not None:
            line = (
                f"execution={executed.requested} was asked for, but the steps ran "
                f"{executed.ran}: {executed.fell_back_because}"
            )
            reasons[line] = reasons.get(line, 0) + 1
    for line, count in reasons.items():
        share = f" (in {count} of {len(config.runs)} runs)" if count < len(config.runs) else ""
        yield f"{config.label}: {line}{share}"
