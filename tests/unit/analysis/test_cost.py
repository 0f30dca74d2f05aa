"""Known prices and times in, known cost out; a price that is not known has its reason."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.recorded import (
    DDP,
    STEADY,
    Spec,
    analysed,
    edit_ranks,
    repeats,
    step_ms,
    swept,
    write_sweep,
)
from scalewise.analysis import (
    Analysis,
    Configuration,
    Cost,
    RatioEstimate,
    analyse,
    load_sweep,
    read_samples,
)
from scalewise.analysis.cost import measure_cost, measure_return, usd_per_million_samples
from scalewise.config import HardwareConfig, Price, conf_dir, read_prices
from scalewise.report import results_json
from scalewise.report.study_tables import studies, tables_of

LIST = Price(5.0, "a seller's list", "2026-01")
OWN = {"usd_per_hour": 2.5, "source": "invoice", "date": "2026-11"}
H200 = HardwareConfig("h200", "cuda", match=("H200",), price=LIST)
UNPRICED = HardwareConfig("l4", "cuda", match=("L4",))
PROFILES = (H200, UNPRICED)


def configured(**hardware: Any) -> dict[str, Any]:
    return {"hardware": {"name": "auto", **hardware}}


def one(path: Path, *specs: Spec) -> Configuration:
    (config,) = analysed(path, *specs).measured
    return config


def cost_of(path: Path, *specs: Spec) -> Cost:
    return measure_cost(one(path, *specs), PROFILES)


def expected_usd(spec: Spec, usd_per_hour: float) -> float:
    """By hours: how many a million samples take, on how many devices."""
    hours: float = 1e6 / spec.global_batch * step_ms(spec) / 1e3 / 3600
    return spec.devices * hours * usd_per_hour


def test_its_interval_is_that_of_the_throughput_turned_over(tmp_path: Path) -> None:
    config = one(tmp_path, *repeats(DDP, STEADY))
    usd = measure_cost(config, PROFILES).usd_per_million_samples
    rate = config.estimate("global_samples_per_s")
    assert usd.interval.low < usd.value < usd.interval.high
    assert usd.interval.low == pytest.approx(usd_per_million_samples(2, 5.0, rate.interval.high))
    assert usd.interval.high == pytest.approx(usd_per_million_samples(2, 5.0, rate.interval.low))


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
@pytest.mark.parametrize("mismatch", [False, True])
def test_a_users_own_price_wins(tmp_path: Path, mismatch: bool, kind: str) -> None:
    hardware = configured(price=OWN, allow_mismatch=mismatch)
    found = cost_of(tmp_path, replace(DDP, kind=kind, config=hardware))
    assert found.price == Price(2.5, "invoice", "2026-11")
    assert found.usd_per_million_samples.value == pytest.approx(expected_usd(DDP, 2.5), rel=1e-3)


def test_a_number_in_place_of_the_lists_is_said_to_be_the_users(tmp_path: Path) -> None:
    given = {"usd_per_hour": 2.0, "source": LIST.source, "date": LIST.date}
    found = cost_of(tmp_path, Spec(config=configured(name="h200", price=given)))
    theirs = "given by the user as hardware.price.usd_per_hour"
    assert found.price == Price(2.0, theirs, "2025-10-09"), "the day of the run"
    assert found.usd_per_million_samples.value == pytest.approx(expected_usd(Spec(), 2.0), rel=1e-3)


LISTED = {"usd_per_hour": 5.0, "source": "a seller's list", "date": "2026-01"}


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (Spec(kind="cpu"), "a share of a CPU host has no list price"),
        (Spec(device_name="Some GPU"), "no hardware profile describes Some GPU"),
        (Spec(device_name="NVIDIA L4"), "hardware profile l4 gives no price"),
        # The profile of another GPU, run with allow_mismatch: its price is not this GPU's.
        (Spec(device_name="Some GPU", config=configured(allow_mismatch=True, price=LISTED)),
         "no hardware profile describes Some GPU"),
        (replace(DDP, emulated=("NCCL_P2P_DISABLE=1",), config=configured(price=OWN)),
         "no price is known of the host that is emulated (NCCL_P2P_DISABLE=1)"),
        (Spec(config=configured(price={**OWN, "usd_per_hour": 0.0})),
         "the price given is 0 USD per hour (invoice, 2026-11)"),
        (Spec(config=configured(price={"usd_per_hour": 2.5})),
         "the recorded price cannot be read: hardware.price"),
    ],
)  # fmt: skip
def test_an_unknown_price_is_missing_and_no_zero(tmp_path: Path, spec: Spec, reason: str) -> None:
    found = cost_of(tmp_path, spec)
    assert (found.price, found.usd_per_million_samples) == (None, None)
    assert found.missing is not None and found.missing.startswith(reason)


def test_gpus_of_several_kinds_have_no_one_price(tmp_path: Path) -> None:
    write_sweep(tmp_path, [DDP])
    kinds = ("NVIDIA L4", "NVIDIA H200")
    edit_ranks(tmp_path, lambda rank: rank["device"].update(name=kinds[rank["rank"]]))
    (config,) = analyse(load_sweep(tmp_path)).measured
    assert measure_cost(config, PROFILES).missing == (
        "no one price holds for GPUs of several kinds (NVIDIA H200, NVIDIA L4)"
    )


def test_the_ratio_needs_no_price_but_knows_two_unequal_ones(tmp_path: Path) -> None:
    analysis = analysed(tmp_path, *repeats(Spec(), STEADY), *repeats(DDP, STEADY))
    costs = {c.config_id: measure_cost(c, PROFILES) for c in analysis.measured}
    (pair,) = analysis.pairs
    multi, efficiency = pair.multi.config_id, pair.efficiency

    def ratio(costs: dict[str, Cost]) -> RatioEstimate | None:
        vars(analysis)["costs"] = costs
        return analysis.cost_ratio(pair)

    plain = ratio(dict.fromkeys(costs, Cost(None, None, "not known")))
    assert plain.value == pytest.approx(1 / efficiency.value)
    each = [costs[side.config_id].usd_per_million_samples for side in (pair.multi, pair.single)]
    assert plain.value == pytest.approx(each[0].value / each[1].value)
    ends = (1 / efficiency.interval.high, 1 / efficiency.interval.low)
    assert (plain.interval.low, plain.interval.high) == pytest.approx(ends)
    dear = replace(costs[multi], price=replace(LIST, usd_per_hour=7.5))
    assert ratio({**costs, multi: dear}).value == pytest.approx(1.5 / efficiency.value)
    assert ratio({**costs, multi: Cost(None, None, "?")}) is None


def test_samples_are_a_whole_number() -> None:
    assert [*map(read_samples, ("1e9", "2500000", "1"))] == [10**9, 2_500_000, 1]


# Devices of one's own: known prices and times in, known returns out.
SHIPPED = conf_dir() / "prices.yaml"
OWNED = ("purchase_usd=30000", "extra_usd=6000", "lifetime_years=4", "hours_per_year=5000",
       "usd_per_hour=5", "usd_per_kwh=0.2", "device_watts=500")  # fmt: skip
SPEEDUP = step_ms(Spec()) / step_ms(DDP)
ALONE, BOTH = 0.4 * 0.2, 0.81 * 0.2
"""USD of electricity an hour: GPU 0 drew 400 W, GPU 1 410 W."""


def priced(path: Path, *typed: str, specs: tuple[Spec, ...] = (Spec(), DDP)) -> Analysis:
    runs = [one for spec in specs for one in repeats(spec)]
    return analyse(swept(path, *runs), prices=read_prices(SHIPPED, typed))


def test_the_shipped_prices_name_their_source() -> None:
    prices = read_prices(SHIPPED)
    assert prices.lifetime_hours == 4 * 4380
    known = [*prices.purchase_usd_of.values(), prices.lifetime_years, prices.hours_per_year]
    assert all(one is not None and one.source and one.date for one in known)
    least = {"usd_per_hour": 0.5, "extra_usd": 0.0, "usd_per_kwh": 0.0, "hours_per_year": 8784.0}
    typed = read_prices(SHIPPED, [f"{key}={value}" for key, value in least.items()])
    assert {key: getattr(typed, key).value for key in least} == least
    assert typed.lifetime_years == prices.lifetime_years


def test_returns_by_hand(tmp_path: Path) -> None:
    analysis = priced(tmp_path, *OWNED)
    (back,) = analysis.returns.values()
    assert back.usd == 36_000
    for key, own in analysis.owned.items():
        pair, costs, prices = analysis.pairs[0], analysis.costs, read_prices(SHIPPED, OWNED)
        assert measure_return(pair, {key: own}, costs, prices) is None, "one side has no price"
    worth = (SPEEDUP - 1) * 5 - (BOTH - ALONE)
    assert back.worth_usd_per_hour.value == pytest.approx(worth, rel=1e-3)
    assert back.payback_hours.value == pytest.approx(36_000 / worth, rel=1e-3)
    assert back.roi.value == pytest.approx(worth * 20_000 / 36_000 - 1, rel=1e-3)
    # At that rent the return is 0.
    least = (36_000 / 20_000 + BOTH - ALONE) / (SPEEDUP - 1)
    assert back.least_usd_per_hour.value == pytest.approx(least, rel=1e-3)
    ends = analysis.pairs[0].speedup.interval
    assert back.payback_hours.high == pytest.approx(36_000 / ((ends.low - 1) * 5 - 0.082), rel=1e-4)
    assert back.payback_hours.low == pytest.approx(36_000 / ((ends.high - 1) * 5 - 0.082), rel=1e-4)


def test_devices_that_slow_it_down_never_pay_back(tmp_path: Path) -> None:
    slow = replace(DDP, phases_ms={**DDP.phases_ms, "exposed_comm": 20.0})
    (back,) = priced(tmp_path, *OWNED, specs=(Spec(), slow)).returns.values()
    assert (back.payback_hours.value, back.payback_hours.high) == (None, None)
    assert back.roi.value < -1, "electricity is lost beside the price"


def test_owning_beside_renting_by_hand(tmp_path: Path) -> None:
    analysis = priced(tmp_path, *OWNED)
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
    analysis = priced(tmp_path, *OWNED, specs=specs)
    watts = [one.watts.value for one in analysis.owned.values() if one.watts is not None]
    assert watts == [500, 1000]
    blind = analyse(swept(tmp_path / "once", *specs), prices=read_prices(SHIPPED, OWNED[:-1]))
    assert [one.watts for one in blind.owned.values()] == [None, None]
    assert any("device_watts" in text for text in studies(blind)[2].texts)


def test_without_a_price_to_buy_nothing_is_said_of_it(tmp_path: Path) -> None:
    analysis = priced(tmp_path, "usd_per_kwh=0.2")
    assert (analysis.owned, analysis.returns) == ({}, {})
    assert not studies(analysis)[2].blocks
    card = "NVIDIA GeForce RTX 4070 Ti SUPER"
    specs = (Spec(device_name=card), replace(DDP, device_name=card))
    (back,) = priced(tmp_path / "card", specs=specs).returns.values()
    assert (back.usd, back.payback_hours) == (800, None), "bought cards have no rent"
    assert back.least_usd_per_hour is not None
    emulated = (Spec(emulated=("PCIe",)), replace(DDP, emulated=("PCIe",)))
    assert not priced(tmp_path / "emulated", *OWNED, specs=emulated).owned


def test_an_alternative_is_measured(tmp_path: Path) -> None:
    half = {name: ms / 2 for name, ms in Spec().phases_ms.items()}
    bf16 = Spec(phases_ms=half, config={"precision": {"name": "bf16-mixed"}})
    workers = Spec(config={"dataset": {"name": "tabular", "loader": {"num_workers": 4}}})
    analysis = priced(tmp_path, *OWNED, specs=(Spec(), DDP, bf16, workers))
    found = analysis.alternatives
    told = {one.what: one for one in found}
    assert all(one.baseline.label == found[0].baseline.label for one in found)
    (devices,) = (one for what, one in told.items() if what.startswith("2 devices"))
    assert (devices.usd, devices.gain) == (36_000, analysis.pairs[0].speedup)
    (faster,) = (one for what, one in told.items() if "bf16" in what)
    assert (faster.gain.value, faster.usd) == (pytest.approx(2.0, rel=1e-3), 0)
    (loader,) = (one for what, one in told.items() if "num_workers" in what)
    assert (loader.gain.value, len(told)) == (pytest.approx(1.0), 3)


def test_the_tables_and_the_json_hold_the_same(tmp_path: Path) -> None:
    analysis = priced(tmp_path, *OWNED)
    plain = json.loads(results_json(analysis))["studies"]
    shown = {one.key: one for one in tables_of(studies(analysis))}
    assert plain.keys() == shown.keys() == {"returns", "owned", "alternatives"}
    (row,) = plain["returns"]
    (back,) = analysis.returns.values()
    assert row["roi"] == {"value": back.roi.value, "low": back.roi.low, "high": back.roi.high}
    assert row["speedup"]["value"] == pytest.approx(SPEEDUP, rel=1e-3)
