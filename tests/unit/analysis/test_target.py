"""Hours and USD of a number of samples, from known rates and prices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fakes.recorded import DDP, Spec, repeats, step_ms, write_sweep
from scalewise.analysis import Analysis, SamplesError, analyse, load_sweep, reach, read_samples

PRICE = {"usd_per_hour": 3.6, "source": "invoice", "date": "2026-11"}
PRICED = {"hardware": {"name": "auto", "price": PRICE}}


def analysed(path: Path, *specs: Spec) -> Analysis:
    runs = [run for spec in specs for run in repeats(spec, [1.0, 1.02, 0.99])]
    return analyse(load_sweep(write_sweep(path, runs)))


def test_hours_follow_the_rate_and_usd_the_devices(tmp_path: Path) -> None:
    specs = [replace(spec, config=PRICED) for spec in (Spec(), DDP)]
    analysis = analysed(tmp_path, *specs)
    for config, spec in zip(analysis.measured, specs, strict=True):
        found = reach(10_000_000, config, analysis.costs[config.config_id])
        hours = 10_000_000 / spec.global_batch * step_ms(spec) / 1e3 / 3600
        assert found.hours and found.usd
        assert found.hours.value == pytest.approx(hours, rel=0.01)
        assert found.usd.value == pytest.approx(found.hours.value * spec.devices * 3.6)
        assert found.hours.interval and found.usd.interval
        assert found.hours.interval.low < found.hours.value < found.hours.interval.high
        both = found.usd.interval.high / found.hours.interval.high
        assert both == pytest.approx(spec.devices * 3.6)


def test_without_a_price_there_are_hours_and_a_reason(tmp_path: Path) -> None:
    analysis = analysed(tmp_path, Spec(kind="cpu"))
    (config,) = analysis.measured
    found = reach(1_000_000, config, analysis.costs[config.config_id])
    assert found.hours
    assert found.usd is None
    assert found.missing == "a share of a CPU host has no list price"


@pytest.mark.parametrize(
    ("typed", "samples"),
    [("1e9", 10**9), ("2500000", 2_500_000), ("1", 1)]
    + [(typed, None) for typed in ("", "many", "0", "-1e9", "1.5", "nan", "inf", "1e300")],
)
def test_samples_are_a_whole_number(typed: str, samples: int | None) -> None:
    if samples is not None:
        assert read_samples(typed) == samples
        return
    with pytest.raises(
        SamplesError, match=r"^--samples: found '.*'; allowed: a whole number .*1e9$"
    ):
        read_samples(typed)
