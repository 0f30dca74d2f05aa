"""What a sample costs: the price of the devices over what they get done.

    USD per million samples = devices * USD per device and hour / 3600 * 10^6
                              / (global samples per second)

It is taken run by run, so its interval over runs is that of the throughput, turned over. Start-up,
warm-up, devices that stand idle and storage are not in it. A price that is not known is missing,
with its reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from scalewise.analysis.configuration import Configuration
from scalewise.analysis.model import setting
from scalewise.analysis.remarks import Remark
from scalewise.analysis.statistics import Estimate, estimate_positive
from scalewise.config import ConfigError, HardwareConfig, Price, profile_of
from scalewise.records import DataError, build

SECONDS_PER_HOUR = 3600.0
MILLION = 1e6


@dataclass(frozen=True)
class Cost:
    """One configuration; what is None has its reason in ``missing``."""

    price: Price | None
    """Of one device."""
    usd_per_million_samples: Estimate | None
    """Of all devices together, over the timed steps."""
    missing: str | None = None

    @property
    def rent(self) -> float | None:
        """USD per hour of one device."""
        return self.price.usd_per_hour if self.price is not None else None


NO_COST = Cost(None, None)


def measure_cost(
    config: Configuration,
    profiles: Sequence[HardwareConfig],
    invalid: tuple[Remark, ...] = (),
    rent: Price | None = None,
) -> Cost:
    """What a million samples cost at the price of its devices; nothing where ``invalid`` says why.

    The price is ``rent``; else the one that the runs recorded with their configuration, the user's
    own above all; else that of the profile made for their GPU.
    """
    price = _price(config, profiles, rent)
    if isinstance(price, str):
        return Cost(None, None, price)
    if invalid:
        return Cost(price, None, f"invalid: {invalid[0].text}")
    usd = [
        usd_per_million_samples(run.world_size, price.usd_per_hour, rate)
        for run in config.runs
        if (rate := run.samples_per_s)
    ]
    return Cost(price, estimate_positive(usd)) if usd else Cost(price, None, _no_rate(config))


def _no_rate(config: Configuration) -> str:
    return config.runs[0].missing.get("throughput", "no throughput") if config.runs else "no run"


def usd_per_million_samples(devices: int, usd_per_hour: float, samples_per_s: float) -> float:
    """The formula above; ``usd_per_hour`` is of one device, ``samples_per_s`` of all together."""
    return devices * usd_per_hour / SECONDS_PER_HOUR / samples_per_s * MILLION


def _price(
    config: Configuration, profiles: Sequence[HardwareConfig], rent: Price | None
) -> Price | str:
    if not config.runs:
        return "no run"
    if emulated := emulated_host(config):
        return f"no price is known of the host that is emulated ({emulated})"
    if rent is not None:
        return rent
    try:
        recorded = {_recorded(run.cell.config, profiles) for run in config.runs}
    except DataError as error:
        return f"the recorded price cannot be read: {error}"
    if len(recorded) > 1:
        return "its runs recorded different prices"
    (price,) = recorded
    found = _of_profile(config, profiles) if price is None else _by_whom(price, config, profiles)
    if isinstance(found, Price) and found.usd_per_hour == 0:
        return f"the price given is 0 USD per hour ({found.source}, {found.date})"
    return found


def emulated_host(config: Configuration) -> str:
    """What of its runs' hosts is emulated; empty for nothing."""
    marks = [p.emulated for run in config.runs if (p := run.cell.provenance) is not None]
    return ", ".join(dict.fromkeys(mark for each in marks for mark in each))


def _recorded(config: Mapping[str, Any] | None, profiles: Sequence[HardwareConfig]) -> Price | None:
    """The price in a run's configuration. Raises DataError for one that is none."""
    plain = setting(config, "hardware.price")
    if plain is None:
        return None
    price = build(Price, plain, "hardware.price")
    # A profile that was allowed not to describe the device has no say; the user's own price has.
    unfit = setting(config, "hardware.allow_mismatch")
    return None if unfit and any(profile.price == price for profile in profiles) else price


def _by_whom(price: Price, config: Configuration, profiles: Sequence[HardwareConfig]) -> Price:
    """A recorded price, said to be the user's own where it is a number in place of a list's.

    Who sets ``hardware.price.usd_per_hour`` alone leaves the list's name and date beside it.
    """
    listed = [p.price for p in profiles if p.price is not None]
    same_list = any((p.source, p.date) == (price.source, price.date) for p in listed)
    if price in listed or not same_list:
        return price
    began = min(run.cell.result.started_at for run in config.runs if run.cell.result)
    day = datetime.fromtimestamp(began, UTC).date().isoformat()
    return Price(price.usd_per_hour, "given by the user as hardware.price.usd_per_hour", day)


def _of_profile(config: Configuration, profiles: Sequence[HardwareConfig]) -> Price | str:
    """Of the one kind of GPU that all runs used."""
    devices = [rank.device for rank in config.rank_summaries]
    names = sorted({device.name for device in devices})
    if not devices:
        return "its devices are not known"
    if any(device.kind == "cpu" for device in devices):
        return "a share of a CPU host has no list price"
    if len(names) > 1:
        return f"no one price holds for GPUs of several kinds ({', '.join(names)})"
    profile = profile_of(names[0], profiles)
    if profile is None:
        return f"no hardware profile describes {names[0]}"
    return profile.price or f"hardware profile {profile.name} gives no price"


_MOST = 10**18
"""More than anybody trains on, and every figure that follows from it can still be written down."""


@dataclass(frozen=True)
class Target:
    """A configuration's way to so many samples; what is None has its reason in ``missing``."""

    hours: Estimate | None
    """Wall time of all devices together."""
    usd: Estimate | None
    """Of all devices together."""
    missing: str | None = None


def read_samples(typed: str) -> int:
    """``1e9`` or ``2500000``. Raises :class:`ConfigError` for anything but a whole number."""
    try:
        value = float(typed)
    except ValueError:
        value = math.nan
    if not 1 <= value <= _MOST or not value.is_integer():
        raise ConfigError(
            f"--samples: found {typed!r}; allowed: a whole number of samples up to 1e18, e.g. 1e9"
        )
    return int(value)


def reach(samples: int, config: Configuration, cost: Cost) -> Target:
    """Time and cost of ``samples`` on the devices of ``config``, at the rate of its timed steps.

    Run by run, so that their intervals are those of the throughput, turned over. Both hold as long
    as the rate of the timed steps does, and what those leave out is in neither.
    """
    if invalid := config.invalid:
        return Target(None, None, invalid[0].text)
    rates = config.values("global_samples_per_s")
    if not rates:
        return Target(None, None, _no_rate(config))
    hours = estimate_positive([samples / rate / SECONDS_PER_HOUR for rate in rates])
    if cost.usd_per_million_samples is None:
        return Target(hours, None, cost.missing or "no price was looked for")
    return Target(hours, cost.usd_per_million_samples.scaled(samples / MILLION))
