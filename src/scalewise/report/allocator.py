"""The CUDA allocator's memory beside the driver's: two counts of different things."""

from __future__ import annotations

from collections.abc import Callable

from scalewise.analysis.figures import MISSING, number
from scalewise.analysis.runs import Configuration
from scalewise.analysis.summary import Analysis
from scalewise.records import RankSummary
from scalewise.report.table import Table

NOTE = (
    "*Allocated* is what tensors held at most and *reserved* what PyTorch's allocator had taken "
    "from the driver for them; a retry is an allocation for which its cache had to be given back "
    "first: of the rank that needed most. *Device-wide* is NVML's, the mean over devices, with the "
    "CUDA context, NCCL's buffers and other processes: it is no sum of the others."
)


def allocator_table(analysis: Analysis) -> Table:
    """Of each run's largest rank, means over runs, but for retries; no rows on CPU hosts."""
    headers = (
        "configuration", "peak allocated (MiB)", "peak reserved (MiB)", "retries (most)",
        "device-wide used (MiB, mean)",
    )  # fmt: skip
    rows = []
    for config in analysis.measured:
        if config.is_cpu:
            continue
        allocated, used = (config.estimate(m) for m in ("peak_memory_mib", "memory_used_mib"))
        reserved = _largest(config, lambda r: r.peak_reserved_mib)
        retries = _largest(config, lambda r: r.allocation_retries)
        rows.append(
            (
                config.label,
                number(allocated.value if allocated else None),
                number(sum(reserved) / len(reserved) if reserved else None),
                f"{max(retries):.0f}" if retries else MISSING,
                number(used.value if used else None),
            )
        )
    return Table(headers, tuple(rows), frozenset(range(1, len(headers))))


def _largest(config: Configuration, of: Callable[[RankSummary], float | None]) -> list[float]:
    """The largest over the ranks of each run in which a rank has it."""
    results = [run.cell.result for run in config.runs if run.cell.result]
    known = [[value for rank in result.ranks if (value := of(rank)) is not None]
             for result in results]  # fmt: skip
    return [max(values) for values in known if values]
