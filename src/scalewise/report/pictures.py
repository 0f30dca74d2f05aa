"""The plots on a page, each with its caption."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scalewise.report import balance_runs, timeline

_CAPTIONS = {
    "throughput.png": "Throughput with 95 % intervals over runs",
    "speedup_efficiency.png": "Speedup and efficiency with 95 % intervals",
    "step_times.png": "Step time over time, every run and rank; the timed window is shaded",
    "step_anatomy.png": "Where the time of a step goes",
    "loss.png": "Loss over samples fed",
    "balance.png": "Arrival of each rank, and CVs across ranks",
    "per_gpu_memory_breakdown.png": "Memory of each device over time",
    "gpu_load_balance_analysis.png": "Memory of each device, and the CVs of memory and arrival",
    "gpu_memory_comparison.png": "Memory of all devices together",
    timeline.NAME: "What every device did over time",
    balance_runs.NAME: "Balance over time, and against training speed",
}


def pictures(names: Sequence[str], drawn: Sequence[str]) -> Iterator[str]:
    """Of the files ``names`` those that were ``drawn``."""
    for name in names:
        if name in drawn:
            yield f"\n![{_CAPTIONS[name]}]({name})"
