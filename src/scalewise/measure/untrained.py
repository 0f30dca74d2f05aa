"""The summary that a rank leaves where it trained nothing: an examination, or a search."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from typing import TYPE_CHECKING

from scalewise.records import RankSummary

if TYPE_CHECKING:
    from scalewise.train.rank import RankContext


def untrained_summary(
    rank: RankContext, metrics: Mapping[str, float | None], why: str
) -> RankSummary:
    """No step, no sample; ``why`` says what was done instead."""
    # ru_maxrss is in KiB on Linux.
    peak_rss_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return RankSummary(
        rank=rank.rank,
        local_rank=rank.local_rank,
        pid=os.getpid(),
        device=rank.device,
        parameters_total=0,
        parameters_trainable=0,
        steps_completed=0,
        samples_fed=0,
        epochs_completed=0,
        gradient_bytes=None,
        gradient_buckets=None,
        flops_per_sample=None,
        peak_allocated_mib=None,
        peak_reserved_mib=None,
        allocation_retries=None,
        peak_rss_mib=peak_rss_kib / 1024,
        metrics=metrics,
        step_rows=0,
        metric_rows=0,
        missing={"training": why},
    )
