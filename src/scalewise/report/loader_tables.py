"""What loaders gave without a model, and how near training comes to it."""

from __future__ import annotations

from typing import Any

from scalewise.analysis import Analysis, Configuration, number, remedy
from scalewise.records import LoaderRate, LoaderRecord, to_plain
from scalewise.report.sections import Column, Section, item, lines, section, table, words

_NOTE = (
    "Samples/s of all ranks at the pace of the slowest, their loaders running at the same time "
    "without a model, after their start. *Cold*: files dropped from the page cache before. "
    "*Start*: until the workers run and what they fetch ahead has come, slowest rank."
)


def loaders(analysis: Analysis) -> Section:
    """A row a loader, then a line a configuration that trains on it."""
    rows, said = [], []
    for config in analysis.configurations:
        record = _record(config)
        if record is not None:
            warm, cold = (_figures(rate) for rate in (record.warm, record.cold))
            rows.append((config.label, *warm, *cold))
            said += [f"{config.label}: {k}: not measured: {v}" for k, v in record.missing.items()]
    for config in analysis.measured:
        ceiling = analysis.ceilings.get(config.config_id)
        if ceiling is None:
            continue
        budget = analysis.budgets.get(config.config_id)
        loss = None if budget is None else budget.loss("loader")
        # Of a limit the budget has it.
        to_try = "" if loss is None or loss.is_limit else str(remedy(config, loss))
        said += [f"{config.label}: {line}" for line in ceiling.lines(to_try)]
    columns = (
        words("configuration", "loaders", item(0)),
        Column("warm", "warm", "samples/s", item(1), number),
        Column("warm_start", "start", "s", item(2), number),
        Column("cold", "cold", "samples/s", item(3), number),
        Column("cold_start", "start, cold", "s", item(4), number),
    )
    return section(
        "loaders",
        "What the loaders give without a model",
        table("loaders", columns, rows, _NOTE),
        lines(said),
    )


def loaders_as_plain(analysis: Analysis, config: Configuration) -> dict[str, Any]:
    """For ``results.json``: of a configuration that was timed, and of one that measured loaders."""
    return {
        "loader_ceiling": to_plain(analysis.ceilings.get(config.config_id)),
        "loader": to_plain(_record(config)),
    }


def _record(config: Configuration) -> LoaderRecord | None:
    return config.runs[0].cell.loader if config.runs else None


def _figures(rate: LoaderRate | None) -> tuple[float | None, float | None]:
    if rate is None:
        return None, None
    return rate.global_samples_per_s, max(one.start_s for one in rate.ranks)
