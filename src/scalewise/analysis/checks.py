"""Every check: reads the measurements of a run, yields a diagnosis or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from scalewise.analysis.checks_batch import communication, divided_too_far
from scalewise.analysis.checks_device import activity, allocator, throttled
from scalewise.analysis.checks_host import input_bound, oversubscribed, stalls
from scalewise.analysis.checks_pipeline import idle_stages, launch_bound_stages
from scalewise.analysis.checks_ranks import sharding, straggler, uneven_shards
from scalewise.analysis.checks_strategy import parameter_averaging, redundant_reductions
from scalewise.analysis.diagnosis import Case, Diagnosis

CHECKS: tuple[Callable[[Case], Iterator[Diagnosis]], ...] = (
    sharding, uneven_shards, straggler, stalls, input_bound, communication, divided_too_far,
    activity, throttled, allocator, oversubscribed, redundant_reductions, parameter_averaging,
    idle_stages, launch_bound_stages,
)  # fmt: skip
"""In no order of importance."""
