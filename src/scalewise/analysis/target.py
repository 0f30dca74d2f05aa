"""How long a given number of samples takes, and what it costs.

    hours = samples / (global samples per second) / 3600
    USD   = samples / 10^6 * (USD per million samples)

Run by run, so that their intervals are those of the throughput, turned over. Both hold as long as
the rate of the timed steps does, and what those leave out is in neither
(:mod:`scalewise.analysis.cost`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scalewise.analysis.cost import MILLION, SECONDS_PER_HOUR, Cost
from scalewise.analysis.runs import Configuration
from scalewise.analysis.statistics import Estimate, estimate_positive

_MOST = 10**18
"""More than anybody trains on, and every figure that follows from it can still be written down."""


class SamplesError(ValueError):
    """A number of samples that is none: one line."""


@dataclass(frozen=True)
class Target:
    """A configuration's way to so many samples; what is None has its reason in ``missing``."""

    hours: Estimate | None
    """Wall time of all devices together."""
    usd: Estimate | None
    """Of all devices together."""
    missing: str | None = None


def read_samples(typed: str) -> int:
    """``1e9`` or ``2500000``. Raises :class:`SamplesError` for anything but a whole number."""
    try:
        value = float(typed)
    except ValueError:
        value = math.nan
    if not 1 <= value <= _MOST or not value.is_integer():
        raise SamplesError(
            f"--samples: found {typed!r}; allowed: a whole number of samples up to 1e18, e.g. 1e9"
        )
    return int(value)


def reach(samples: int, config: Configuration, cost: Cost | None) -> Target:
    """Time and cost of ``samples`` on the devices of ``config``, at the rate of its timed steps."""
    invalid = config.invalid
    if invalid:
        return Target(None, None, invalid[0].reason)
    rates = config.values("samples_per_s")
    if not rates:
        why = config.runs[0].missing.get("throughput", "no throughput") if config.runs else "no run"
        return Target(None, None, why)
    hours = estimate_positive([samples / rate / SECONDS_PER_HOUR for rate in rates])
    if cost is None or cost.usd_per_million_samples is None:
        return Target(hours, None, cost.missing if cost else "no price was looked for")
    return Target(hours, cost.usd_per_million_samples.scaled(samples / MILLION))
