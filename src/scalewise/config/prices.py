"""Prices that a report reckons with: what devices cost to buy, to keep and to feed.

They are of the report and not of the run, so that one measurement can be held against several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, NonNegativeFloat

from scalewise.config.errors import ConfigError
from scalewise.config.hardware import Price
from scalewise.records import DataError, build, closest, convert


@dataclass(frozen=True)
class Quote:
    """A price or an assumption, with where it is from."""

    value: NonNegativeFloat
    source: str
    date: str


@dataclass(frozen=True)
class Prices:
    """``conf/prices.yaml``. What is None is not known, and nothing is computed from it."""

    usd_per_hour: Quote | None = None
    """Rent of one device, in place of every other."""
    purchase_usd: Quote | None = None
    """One device, in place of ``purchase_usd_of``."""
    purchase_usd_of: Mapping[str, Quote] = field(default_factory=dict)
    """By the name of a hardware profile."""
    extra_usd: Quote | None = None
    """What the devices beyond the first one need beside themselves, once."""
    lifetime_years: Quote | None = None
    hours_per_year: Quote | None = None
    """Hours of a year in which the devices train."""
    usd_per_kwh: Quote | None = None
    device_watts: Quote | None = None
    """Draw of one busy device, where no energy was measured."""

    @property
    def rent(self) -> Price | None:
        """The rent as the price that costs are taken at."""
        given = self.usd_per_hour
        return None if given is None else Price(given.value, given.source, given.date)

    @property
    def lifetime_hours(self) -> float | None:
        """Hours that a device trains until it is replaced."""
        if self.lifetime_years is None or self.hours_per_year is None:
            return None
        return self.lifetime_years.value * self.hours_per_year.value


_MAY_BE_ZERO = ("extra_usd", "usd_per_kwh")
_HOURS_OF_A_YEAR = 8784.0


def read_prices(path: Path, typed: Sequence[str] = ()) -> Prices:
    """The shipped prices, with those that somebody ``typed`` as ``KEY=VALUE``.

    Raises :class:`ConfigError` for a key or a value that is none.
    """
    prices = build(Prices, yaml.safe_load(path.read_text(encoding="utf-8")), path.name)
    today = datetime.now(UTC).date().isoformat()
    keys = [one.name for one in fields(Prices) if one.name != "purchase_usd_of"]
    for words in typed:
        key, _, text = words.partition("=")
        if key not in keys:
            raise ConfigError(
                f"--price: found {words!r}{closest(key, keys)}; allowed: KEY=VALUE with "
                f"{', '.join(keys)}"
            )
        quoted: Any = {key: Quote(_number(key, text), "given with --price", today)}
        prices = replace(prices, **quoted)
    return prices


def _number(key: str, text: str) -> float:
    least = Field(ge=0) if key in _MAY_BE_ZERO else Field(gt=0)
    most = _HOURS_OF_A_YEAR if key == "hours_per_year" else 1e12
    kind = Annotated[float, least, Field(le=most, strict=False)]
    try:
        value: float = convert(kind, text, f"--price {key}")
    except DataError as error:
        raise ConfigError(str(error)) from error
    return value
