"""The CUDA allocator's memory beside the driver's: two counts of different things."""

from __future__ import annotations

from collections.abc import Callable

from scalewise.analysis.figures import MISSING, number
from scalewise.analysis.summary import Analysis
from scalewise.records import RankSummary
from scalewise.report.table import Table

NOTE = (
    "*Allocated* is what tensors held at most and *reserved* what PyTorch's allocator had taken "
    "from the driver for them; a retry is an allocation for which its cache had to be given back "
    "first. *Device-wide* is NVML's, with the CUDA context, NCCL's buffers and other processes: it "
    "is no sum of the others."
)


def allocator_table(analysis: Analysis) -> Table:
    """Peaks over the ranks of a configuration's last run; no rows on CPU hosts."""
    headers = (
        "configuration", "peak allocated (MiB)", "peak reserved (MiB)", "retries",
        "device-wide used (MiB, mean)",
    )  # fmt: skip
    rows = []
    for config in analysis.measured:
        run = config.runs[-1]
        ranks = run.cell.result.ranks if run.cell.result else ()
        if not any(rank.device.kind == "cuda" for rank in ranks):
            continue
        retries = _largest(ranks, lambda r: r.allocation_retries)
        rows.append(
            (
                config.label,
                number(_largest(ranks, lambda r: r.peak_allocated_mib)),
                number(_largest(ranks, lambda r: r.peak_reserved_mib)),
                MISSING if retries is None else str(int(retries)),
                number(run.memory_used_mib),
            )
        )
    return Table(headers, tuple(rows), frozenset(range(1, len(headers))))


def _largest(
    ranks: tuple[RankSummary, ...], of: Callable[[RankSummary], float | None]
) -> float | None:
    known = [value for value in map(of, ranks) if value is not None]
    return max(known) if known else None
