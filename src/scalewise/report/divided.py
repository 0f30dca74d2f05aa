"""What dividing a model over devices costs in waiting, and what it saves in memory."""

from __future__ import annotations

from scalewise.analysis.pipeline import measure_pipeline
from scalewise.analysis.runs import Configuration
from scalewise.analysis.summary import Analysis

_DIVIDES = ("fsdp", "tensor", "pipeline")


def divided_lines(analysis: Analysis) -> list[str]:
    """Idle time of pipelines and memory of every rank, for strategies that divide the model."""
    return [line for config in analysis.measured for line in (*_idle(config), *_memory(config))]


def _idle(config: Configuration) -> list[str]:
    found = [idle for run in config.runs if (idle := measure_pipeline(run.cell, run.anatomy))]
    return [f"{config.label}: {found[0]}{_of_runs(len(found))}"] if found else []


def _memory(config: Configuration) -> list[str]:
    if _kind(config) not in _DIVIDES or not config.runs:
        return []
    result = config.runs[0].cell.result
    ranks = result.ranks if result else ()
    parts = []
    states = [r.optimizer_state_bytes for r in ranks]
    if all(s is not None for s in states):
        parts.append(f"optimizer state {_each([(s or 0) / 2**20 for s in states])} MiB")
    on_gpu = all(r.device.kind == "cuda" for r in ranks)
    peaks = [r.peak_allocated_mib if on_gpu else r.peak_rss_mib for r in ranks]
    if all(p is not None for p in peaks):
        name = "peak allocated" if on_gpu else "peak resident set"
        parts.append(f"{name} {_each([p or 0 for p in peaks])} MiB")
    count = f"{ranks[0].parameters_total:,} parameters in all"
    return [f"{config.label}: {count}; rank by rank {', '.join(parts)}{_of_runs(len(config.runs))}"]


def _kind(config: Configuration) -> object:
    strategy = (config.cells[0].config or {}).get("strategy")
    return strategy.get("kind") if isinstance(strategy, dict) else None


def _each(values: list[float]) -> str:
    return " / ".join(f"{value:,.3g}" if value < 100 else f"{value:,.0f}" for value in values)


def _of_runs(count: int) -> str:
    return f" (first of {count} runs)" if count > 1 else ""
