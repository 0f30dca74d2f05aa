"""What a sample costs: the price of the devices over what they get done; rented, or one's own.

    USD per million samples = devices * USD per device and hour / 3600 * 10^6
                              / (global samples per second)

It is taken run by run, so its interval over runs is that of the throughput, turned over. Start-up,
warm-up, devices that stand idle and storage are not in it. A price that is not known is missing,
with its reason.

Devices that are bought, kept for some years and fed with electricity are worth what the work that
they add would cost on a rented one (docs/studies.md). Intervals are those of the speedup.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from scalewise.analysis.comparability import FACTORS, differences, grouped, shared_part
from scalewise.analysis.configuration import Configuration
from scalewise.analysis.figures import BoundedFigure
from scalewise.analysis.model import setting
from scalewise.analysis.remarks import Remark
from scalewise.analysis.run import Run
from scalewise.analysis.scaling import Pair, rate_ratio
from scalewise.analysis.statistics import Estimate, RatioEstimate, estimate_positive
from scalewise.config import (
    ConfigError,
    HardwareConfig,
    Price,
    Prices,
    Quote,
    conf_dir,
    load_profiles,
    profile_of,
)
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


def measure_costs(
    configs: Sequence[Configuration], pairs: Sequence[Pair],
    invalid: Mapping[str, tuple[Remark, ...]], prices: Prices,
) -> tuple[dict[str, Cost], dict[str, Owned], dict[str, Return]]:  # fmt: skip
    """By ``config_id``: what samples cost, rented and owned, and what added devices bring in."""
    profiles, rent = load_profiles(conf_dir() / "hardware"), prices.rent
    costs, owned, returns = {}, {}, {}
    for config in configs:
        key = config.config_id
        costs[key] = measure_cost(config, profiles, invalid.get(key, ()), rent)
        if key not in invalid and (own := measure_owned(config, prices, profiles, costs[key])):
            owned[key] = own
    for pair in pairs:
        if back := measure_return(pair, owned, costs, prices):
            returns[pair.multi.config_id] = back
    return costs, owned, returns


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
    if not usd:
        return Cost(price, None, config.runs[0].missing.get("throughput", "no throughput"))
    return Cost(price, estimate_positive(usd))


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
    """Who sets ``hardware.price.usd_per_hour`` alone leaves a list's name and date beside it."""
    listed = [p.price for p in profiles if p.price is not None]
    if price in listed or all((p.source, p.date) != (price.source, price.date) for p in listed):
        return price
    began = min(run.result.started_at for run in config.runs)
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


@dataclass(frozen=True)
class Owned:
    """A configuration on devices that are bought."""

    config: Configuration
    quote: Quote
    """Price of one device."""
    usd: float
    """Of all devices, with what the added ones need beside them."""
    watts: Estimate | None
    """Of all devices, over runs; None where neither measured nor given."""
    usd_per_million_samples: Estimate | None
    """None without a lifetime."""
    break_even_hours: BoundedFigure | None
    """None where no rent is known; its interval is that of the watts."""


@dataclass(frozen=True)
class Return:
    """What the devices added to one bring in."""

    pair: Pair
    usd: float
    worth_usd_per_hour: BoundedFigure | None
    """Of training; this and the next two are None where no rent is known."""
    payback_hours: BoundedFigure | None
    roi: BoundedFigure | None
    """Over the lifetime, as a share of the price: 0 is money back."""
    least_usd_per_hour: BoundedFigure | None
    """Rent of one device above which they pay within the lifetime."""


@dataclass(frozen=True)
class Alternative:
    """Something else to change, beside the same single device."""

    baseline: Configuration
    what: str
    gain: RatioEstimate
    """Samples/s over the baseline's."""
    usd: float | None
    """Its price; None where that is not known."""
    config: Configuration
    """What measured it."""


def measure_owned(
    config: Configuration, prices: Prices, profiles: Sequence[HardwareConfig], cost: Cost
) -> Owned | None:
    """What the configuration costs on devices of one's own; None without a price to buy them."""
    quote = _purchase(config, prices, profiles)
    if quote is None:
        return None
    devices = config.runs[0].world_size
    extra = prices.extra_usd.value if prices.extra_usd is not None and devices > 1 else 0.0
    usd = devices * quote.value + extra
    watts = _watts(config, prices)
    hours = None
    if cost.rent is not None:
        rents = [devices * cost.rent - _electricity(w, prices) for w in _ends(watts)]
        hours = _rising([_over(usd, rent) for rent in rents])
    return Owned(config, quote, usd, watts, _owned_per_million(config, usd, prices), hours)


def _purchase(
    config: Configuration, prices: Prices, profiles: Sequence[HardwareConfig]
) -> Quote | None:
    """Price of one device; none is known of a host that is emulated."""
    if emulated_host(config) or not config.values("global_samples_per_s"):
        return None
    if prices.purchase_usd is not None:
        return prices.purchase_usd
    names = sorted({rank.device.name for rank in config.rank_summaries})
    profile = profile_of(names[0], profiles) if len(names) == 1 else None
    return prices.purchase_usd_of.get(profile.name) if profile is not None else None


def _watts(config: Configuration, prices: Prices) -> Estimate | None:
    """Of all devices: measured, else as given."""
    known = [watts for run in config.runs if (watts := _run_watts(run)) is not None]
    if known and len(known) == len(config.runs):
        return estimate_positive(known)
    if (given := prices.device_watts) is None:
        return None
    return Estimate(given.value * config.runs[0].world_size, 0, None, None)


def _ends(figure: Estimate | RatioEstimate | None) -> tuple[float | None, ...]:
    """The lower end of its interval, the figure and the upper end; the figure alone without one."""
    if figure is None:
        return (None,)
    if figure.interval is None:
        return (figure.value,)
    return figure.interval.low, figure.value, figure.interval.high


def _run_watts(run: Run) -> float | None:
    joules, rate = run.value("energy_j_per_million_samples"), run.samples_per_s
    return None if joules is None or rate is None else joules * rate / MILLION


def _electricity(watts: float | None, prices: Prices) -> float:
    """USD an hour; 0 where it cannot be told, which :func:`electricity_missing` says."""
    if watts is None or prices.usd_per_kwh is None:
        return 0.0
    return watts / 1000 * prices.usd_per_kwh.value


def electricity_missing(owned: Owned, prices: Prices) -> str | None:
    """Why no electricity is in the figures; None where it is."""
    if prices.usd_per_kwh is None:
        return "electricity is not in it (--price usd_per_kwh=N)"
    if owned.watts is None:
        return "electricity is not in it: no energy was measured (--price device_watts=N)"
    return None


def _owned_per_million(config: Configuration, usd: float, prices: Prices) -> Estimate | None:
    """Run by run: its interval is that of the throughput, and of the energy where measured."""
    hours, given = prices.lifetime_hours, prices.device_watts
    if hours is None:
        return None
    found = []
    for run in config.runs:
        watts = _run_watts(run)
        if watts is None and given is not None:
            watts = given.value * run.world_size
        per_hour = usd / hours + _electricity(watts, prices)
        if (rate := run.samples_per_s) is not None:
            found.append(usd_per_million_samples(1, per_hour, rate))
    return estimate_positive(found)


def measure_return(pair: Pair, owned: Mapping[str, Owned], costs: Mapping[str, Cost],
                   prices: Prices) -> Return | None:  # fmt: skip
    """What the added devices bring in; None where their price is not known, or of a bound."""
    multi, single = (owned.get(c.config_id) for c in (pair.multi, pair.single))
    if multi is None or single is None or pair.invalid or pair.multi.is_ceiling:
        return None
    if (usd := multi.usd - single.usd) <= 0:
        return None
    watts = multi.watts.value - single.watts.value if multi.watts and single.watts else None
    electricity = _electricity(watts, prices)
    hours = prices.lifetime_hours
    rent = costs.get(pair.single.config_id, NO_COST).rent
    # From the lower end of the speedup to its upper one.
    gains = [end - 1 for end in _ends(pair.speedup) if end is not None]
    least = worth = payback = roi = None
    if hours is not None:
        least = _falling([_over(usd / hours + electricity, gain) for gain in gains])
    if rent is not None:
        worths = [gain * rent - electricity for gain in gains]
        worth = _rising(worths)
        payback = _falling([_over(usd, one) for one in worths])
        roi = None if hours is None else _rising([one * hours / usd - 1 for one in worths])
    return Return(pair, usd, worth, payback, roi, least)


def _over(above: float, below: float) -> float | None:
    return above / below if below > 0 else None


def _rising(values: Sequence[float | None]) -> BoundedFigure:
    if len(values) == 1:
        return BoundedFigure(values[0], None, None)
    return BoundedFigure(values[1], values[0], values[2])


def _falling(values: Sequence[float | None]) -> BoundedFigure:
    return _rising(values[::-1])


_OPTIONS = (
    ("precision=bf16-mixed", ("precision",)),
    ("execution=compile", ("execution",)),
    ("execution=cudagraph", ("execution",)),
    ("dataset.loader.num_workers=4", ("dataset.loader",)),
    ("another GPU", FACTORS["gpu"]),
)
"""What to type, and the fields of identity that it changes."""


def find_alternatives(
    configs: Sequence[Configuration],
    pairs: Sequence[Pair],
    returns: Mapping[str, Return],
    owned: Mapping[str, Owned],
) -> tuple[Alternative, ...]:
    """Beside each single device: more devices, then each option that this sweep measured.

    None of one that is an option of another.
    """
    rated = (c for c in configs if c.devices == 1 and c.values("global_samples_per_s"))
    singles = [config for config in rated if not config.invalid]
    sound = [p for p in pairs if not p.invalid and not p.multi.is_ceiling]
    options: dict[str, list[tuple[str, tuple[str, ...], list[Configuration]]]] = {}
    for typed, fields in _OPTIONS:
        parts = {c.config_id: shared_part(c.identity, also=fields) for c in singles}
        near = grouped(singles, lambda c: parts[c.config_id])  # noqa: B023 - used at once
        for one in singles:
            others = [c for c in near[parts[one.config_id]] if _is_option(one, c, typed, fields)]
            options.setdefault(one.config_id, []).append((typed, fields, others))
    taken: set[str] = set()
    for config_id, listed in options.items():
        for typed, _, others in listed:
            # Loaders and GPUs are options of each other: the first of them is the baseline.
            if config_id not in taken or typed.startswith(("precision", "execution")):
                taken |= {c.config_id for c in others}
    found: list[Alternative] = []
    for baseline in (c for c in singles if c.config_id not in taken):
        for pair in (p for p in sound if p.single.config_id == baseline.config_id):
            what = f"{pair.devices} devices, {pair.multi.name('strategy')}"
            price = returns.get(pair.multi.config_id)
            usd = price.usd if price else None
            found.append(Alternative(baseline, what, pair.speedup, usd, pair.multi))
        for _, fields, others in options[baseline.config_id]:
            found += [_measured(baseline, other, fields, owned) for other in others]
    return tuple(found)


def _is_option(
    baseline: Configuration, other: Configuration, typed: str, fields: Sequence[str]
) -> bool:
    key, _, value = typed.partition("=")
    is_named = key in ("precision", "execution")
    if is_named and not other.name(key) == value != baseline.name(key):
        return False
    if other is baseline or differences(baseline.identity, other.identity, also=fields):
        return False
    told = "device_model" if "device_model" in fields else fields[0]
    changed = {name for name, _ in baseline.identity.items() ^ other.identity.items()}
    return is_named or any(name.startswith(told) for name in changed)


def _measured(
    baseline: Configuration, other: Configuration, fields: Sequence[str],
    owned: Mapping[str, Owned],
) -> Alternative:  # fmt: skip
    """A setting costs nothing, another GPU the difference to the one there is."""
    gain = rate_ratio(other, baseline)
    if "device_model" not in fields:
        return Alternative(baseline, " ".join(other.swept) or other.label, gain, 0.0, other)
    a, b = owned.get(other.config_id), owned.get(baseline.config_id)
    usd = None if a is None or b is None else a.usd - b.usd
    return Alternative(baseline, other.rank_summaries[0].device.name, gain, usd, other)
