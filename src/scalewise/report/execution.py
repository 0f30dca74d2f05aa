"""How steps were really executed, where that is not, or not in all, what was asked for."""

from __future__ import annotations

from collections.abc import Iterator

from scalewise.analysis.runs import Configuration

_NAMED = 3
"""Layers that are named; the ranks' records have all of them."""


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


def fp8_layers(config: Configuration) -> Iterator[str]:
    """How many linear layers of ``config``'s model multiplied in fp8, and which did not."""
    result = config.runs[0].cell.result if config.runs else None
    fp8 = result.ranks[0].fp8 if result is not None else None
    if fp8 is None:
        return
    others = fp8.other_layers
    more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
    names = f": not {', '.join(others[:_NAMED])}{more}" if others else ""
    count = len(fp8.fp8_layers)
    yield f"{config.label}: {count} of {count + len(others)} linear layers ran in fp8{names}"
