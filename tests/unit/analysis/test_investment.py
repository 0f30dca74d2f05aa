"""Known prices and times in, known returns out."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.recorded import DDP, STEADY_3, Spec, repeats, step_ms, swept
from scalewise.analysis import Analysis, analyse
from scalewise.config import ConfigError, conf_dir, read_prices
from scalewise.report import results_json
from scalewise.report.study_tables import studies, tables_of

SHIPPED = conf_dir() / "prices.yaml"
OWN = ("purchase_usd=30000", "extra_usd=6000", "lifetime_years=4", "hours_per_year=5000",
       "usd_per_hour=5", "usd_per_kwh=0.2", "device_watts=500")  # fmt: skip
SPEEDUP = step_ms(Spec()) / step_ms(DDP)
ALONE, BOTH = 0.4 * 0.2, 0.81 * 0.2
"""USD of electricity an hour: GPU 0 drew 400 W, GPU 1 410 W."""


def priced(path: Path, *typed: str, specs: tuple[Spec, ...] = (Spec(), DDP)) -> Analysis:
    runs = [one for spec in specs for one in repeats(spec, STEADY_3)]
    return analyse(swept(path, *runs), prices=read_prices(SHIPPED, typed))


def test_the_shipped_prices_name_their_source() -> None:
    prices = read_prices(SHIPPED)
    assert prices.lifetime_hours == 4 * 4380
    known = [*prices.purchase_usd_of.values(), prices.lifetime_years, prices.hours_per_year]
    assert all(one is not None and one.source and one.date for one in known)


@pytest.mark.parametrize(
    "typed",
    ["purchase=1", "purchase_usd", "purchase_usd=0", "purchase_usd=nan", "usd_per_kwh=-1",
     "hours_per_year=9000", "lifetime_years=long", "purchase_usd_of=1"],
)  # fmt: skip
def test_a_wrong_price_is_one_line(typed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_prices(SHIPPED, [typed])
    assert "found" in str(caught.value)
    assert "allowed" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_returns_by_hand(tmp_path: Path) -> None:
    analysis = priced(tmp_path, *OWN)
    (back,) = analysis.returns.values()
    assert back.usd == 36_000
    worth = (SPEEDUP - 1) * 5 - (BOTH - ALONE)
    assert back.worth_usd_per_hour.value == pytest.approx(worth, rel=1e-3)
    assert back.payback_hours.value == pytest.approx(36_000 / worth, rel=1e-3)
    assert back.roi.value == pytest.approx(worth * 20_000 / 36_000 - 1, rel=1e-3)
    # At that rent the return is 0.
    least = (36_000 / 20_000 + BOTH - ALONE) / (SPEEDUP - 1)
    assert back.least_usd_per_hour.value == pytest.approx(least, rel=1e-3)
    interval = analysis.pairs[0].speedup.interval
    assert back.payback_hours.high == pytest.approx(
        36_000 / ((interval.low - 1) * 5 - 0.082), rel=1e-4
    )
    assert back.payback_hours.low == pytest.approx(
        36_000 / ((interval.high - 1) * 5 - 0.082), rel=1e-4
    )


def test_devices_that_slow_it_down_never_pay_back(tmp_path: Path) -> None:
    slow = replace(DDP, phases_ms={**DDP.phases_ms, "exposed_comm": 20.0})
    (back,) = priced(tmp_path, *OWN, specs=(Spec(), slow)).returns.values()
    assert (back.payback_hours.value, back.payback_hours.high) == (None, None)
    assert back.roi.value < -1, "electricity is lost beside the price"


def test_owning_beside_renting_by_hand(tmp_path: Path) -> None:
    analysis = priced(tmp_path, *OWN)
    multi = analysis.pairs[0].multi
    owned = analysis.owned[multi.config_id]
    assert owned.usd == 66_000
    assert owned.break_even_hours.value == pytest.approx(66_000 / (2 * 5 - BOTH), rel=1e-3)
    per_hour, rate = 66_000 / 20_000 + BOTH, 128e3 / step_ms(DDP)
    expected = per_hour / 3600 / rate * 1e6
    assert owned.usd_per_million_samples.value == pytest.approx(expected, rel=1e-3)
    rented = analysis.costs[multi.config_id].usd_per_million_samples
    assert rented.value == pytest.approx(2 * 5 / 3600 / rate * 1e6, rel=1e-3)


def test_given_watts_stand_in_for_energy_that_was_not_measured(tmp_path: Path) -> None:
    specs = (Spec(kind="cpu"), replace(DDP, kind="cpu"))
    analysis = priced(tmp_path, *OWN, specs=specs)
    watts = [one.watts.value for one in analysis.owned.values() if one.watts is not None]
    assert watts == [500, 1000]
    once = swept(tmp_path / "once", *specs)
    blind = analyse(once, prices=read_prices(SHIPPED, OWN[:-1]))
    assert [one.watts for one in blind.owned.values()] == [None, None]
    assert any("device_watts" in text for text in studies(blind)[2].texts)


def test_without_a_price_to_buy_nothing_is_said_of_it(tmp_path: Path) -> None:
    analysis = priced(tmp_path, "usd_per_kwh=0.2")
    assert (analysis.owned, analysis.returns) == ({}, {})
    assert not studies(analysis)[2].blocks
    card = "NVIDIA GeForce RTX 4070 Ti SUPER"
    specs = (Spec(device_name=card), replace(DDP, device_name=card))
    found = priced(tmp_path / "card", specs=specs)
    (back,) = found.returns.values()
    assert (back.usd, back.payback_hours) == (800, None), "bought cards have no rent"
    assert back.least_usd_per_hour is not None
    emulated = (Spec(emulated=("PCIe",)), replace(DDP, emulated=("PCIe",)))
    assert not priced(tmp_path / "emulated", *OWN, specs=emulated).owned


def test_an_alternative_is_measured(tmp_path: Path) -> None:
    half = {name: ms / 2 for name, ms in Spec().phases_ms.items()}
    bf16 = Spec(phases_ms=half, config={"precision": {"name": "bf16-mixed"}})
    workers = Spec(config={"dataset": {"name": "tabular", "loader": {"num_workers": 4}}})
    analysis = priced(tmp_path, *OWN, specs=(Spec(), DDP, bf16, workers))
    found = analysis.alternatives
    told = {one.what: one for one in found}
    assert all(one.baseline.label == found[0].baseline.label for one in found)
    (devices,) = (one for what, one in told.items() if what.startswith("2 devices"))
    assert (devices.usd, devices.gain) == (36_000, analysis.pairs[0].speedup)
    (faster,) = (one for what, one in told.items() if "bf16" in what)
    assert faster.gain.value == pytest.approx(2.0, rel=1e-3)
    assert faster.usd == 0
    (loader,) = (one for what, one in told.items() if "num_workers" in what)
    assert loader.gain.value == pytest.approx(1.0)
    assert len(told) == 3


def test_the_tables_and_the_json_hold_the_same(tmp_path: Path) -> None:
    analysis = priced(tmp_path, *OWN)
    plain = json.loads(results_json(analysis))["studies"]
    shown = {one.key: one for one in tables_of(studies(analysis))}
    assert plain.keys() == shown.keys() == {"returns", "owned", "alternatives"}
    (row,) = plain["returns"]
    (back,) = analysis.returns.values()
    assert row["roi"] == {"value": back.roi.value, "low": back.roi.low, "high": back.roi.high}
    assert row["speedup"]["value"] == pytest.approx(SPEEDUP, rel=1e-3)
