"""What disturbed the runs: contexts on another GPU, foreign processes, stalls of all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from scalewise.analysis.disturbances import CODES, DEVICE_CODES, Code, Finding
from scalewise.analysis.runs import Configuration
from scalewise.analysis.summary import Analysis
from scalewise.report.gathered import by_text
from scalewise.validation import to_plain

TITLE: Final = "Processes, memory and stalls"
HOW_TO_READ: Final = (
    "A finding says what happened beside the training; it makes no run invalid. A busy host stalls "
    "all ranks too."
)


def found_lines(analysis: Analysis) -> list[str]:
    """One line for each configuration and code of which something was found."""
    return [line for code in CODES for line in _found(analysis, code)]


def all_lines(analysis: Analysis) -> Iterator[str]:
    """Of each code what was found, what cannot be told and why, or that there is nothing."""
    on_gpus = any(
        rank.device.kind == "cuda"
        for cell in analysis.sweep.cells
        if cell.result
        for rank in cell.result.ranks
    )
    for code in CODES if on_gpus else CODES[len(DEVICE_CODES) :]:
        of_code = [one for one in analysis.disturbances if one.code == code]
        yield from _found(analysis, code)
        untold = [(one.cell, one.detail) for one in of_code if one.status == "cannot be told"]
        yield from (f"`{code}`, cannot be told: {line}" for line in by_text(untold))
        if not of_code:
            yield f"`{code}`: none found"


def as_plain(analysis: Analysis) -> list[dict[str, Any]]:
    """Every finding for programs."""
    return [to_plain(finding) for finding in analysis.disturbances]


def _found(analysis: Analysis, code: Code) -> Iterator[str]:
    """``gpt2 ddp: `common_stall` in 3 of 3 runs: ...``, with the details of the first run."""
    by_cell: dict[str, list[Finding]] = {}
    for one in analysis.disturbances:
        if (one.code, one.status) == (code, "found"):
            by_cell.setdefault(one.cell, []).append(one)
    for config in analysis.configurations:
        names = _finished(config)
        hit = [name for name in names if name in by_cell]
        if hit:
            details = "; ".join(one.detail for one in by_cell[hit[0]])
            where = f" ({hit[0]})" if len(names) > 1 else ""
            yield (
                f"{config.label}, `{code}` in {len(hit)} of {len(names)} "
                f"{'run' if len(names) == 1 else 'runs'}: {details}{where}"
            )


def _finished(config: Configuration) -> list[str]:
    return [cell.planned.name for cell in config.cells if cell.result is not None]
