"""What a cell's configuration says it is: a timed run, a profiled one, or an examination."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def is_timed(config: Mapping[str, Any] | None) -> bool:
    """Whether a cell of this configuration trains, and without a profiler."""
    return not is_profiled(config) and not is_examination(config)


def is_profiled(config: Mapping[str, Any] | None) -> bool:
    """Whether it runs under torch's profiler."""
    profile = (config or {}).get("profile")
    return isinstance(profile, Mapping) and bool(profile.get("window") or profile.get("trace"))


def is_examination(config: Mapping[str, Any] | None) -> bool:
    """Whether the doctor examines the devices in it."""
    return bool((config or {}).get("workload") == "doctor")
