"""What a cell's configuration says it is: a timed run, a profiled one, or no training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def is_timed(config: Mapping[str, Any] | None) -> bool:
    """Whether a cell of this configuration trains, and without a profiler."""
    return not is_profiled(config) and not is_examination(config) and not is_search(config)


def is_profiled(config: Mapping[str, Any] | None) -> bool:
    """Whether it runs under torch's profiler."""
    profile = (config or {}).get("profile")
    return isinstance(profile, Mapping) and bool(profile.get("window") or profile.get("trace"))


def is_examination(config: Mapping[str, Any] | None) -> bool:
    """Whether the doctor examines the devices in it."""
    return bool((config or {}).get("workload") == "doctor")


def is_search(config: Mapping[str, Any] | None) -> bool:
    """Whether it only tries which batch sizes fit."""
    return bool((config or {}).get("workload") == "find_batch")


def is_monitored(config: Mapping[str, Any] | None) -> bool:
    """Whether a script of the user's own trained it, under the Monitor callback."""
    tracking = (config or {}).get("tracking")
    return isinstance(tracking, Mapping) and tracking.get("name") == "monitor"
