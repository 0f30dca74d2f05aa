"""Known prices and times in, known cost out; a price that is not known has its reason."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.recorded import DDP, STEADY, Spec, analysed, edit_ranks, repeats, step_ms, write_sweep
from scalewise.analysis import (
    Analysis,
    Configuration,
    Cost,
    Pair,
    analyse,
    load_sweep,
    read_samples,
)
from scalewise.analysis.cost import measure_cost, usd_per_million_samples
from scalewise.config import ConfigError, HardwareConfig, Price

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


def test_a_million_samples_by_hand() -> None:
    # 500 samples/s: 2,000 s, which are 5/9 h; two devices at 9 USD an hour.
    assert usd_per_million_samples(2, 9.0, 500.0) == pytest.approx(10.0)


@pytest.mark.parametrize("spec", [Spec(), DDP, replace(DDP, scaling="weak")])
def test_devices_times_price_over_what_they_get_done(tmp_path: Path, spec: Spec) -> None:
    found = cost_of(tmp_path, spec)
    assert (found.price, found.missing) == (LIST, None)
    assert found.usd_per_million_samples.value == pytest.approx(expected_usd(spec, 5.0), rel=1e-3)
    assert found.usd_per_million_samples.interval is None


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
    usd = found.usd_per_million_samples
    assert usd.value == pytest.approx(expected_usd(Spec(), 2.0), rel=1e-3)


LISTED = {"usd_per_hour": 5.0, "source": "a seller's list", "date": "2026-01"}


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (Spec(kind="cpu"), "a share of a CPU host has no list price"),
        (Spec(device_name="Some GPU"), "no hardware profile describes Some GPU"),
        (Spec(device_name="NVIDIA L4"), "hardware profile l4 gives no price"),
        (
            # The profile of another GPU, run with allow_mismatch: its price is not this GPU's.
            Spec(device_name="Some GPU", config=configured(allow_mismatch=True, price=LISTED)),
            "no hardware profile describes Some GPU",
        ),
        (
            replace(DDP, emulated=("NCCL_P2P_DISABLE=1",), config=configured(price=OWN)),
            "no price is known of the host that is emulated (NCCL_P2P_DISABLE=1)",
        ),
        (
            Spec(config=configured(price={**OWN, "usd_per_hour": 0.0})),
            "the price given is 0 USD per hour (invoice, 2026-11)",
        ),
        (
            Spec(config=configured(price={"usd_per_hour": 2.5})),
            "the recorded price cannot be read: hardware.price",
        ),
    ],
)
def test_a_price_that_is_not_known_is_missing_and_no_zero(
    tmp_path: Path, spec: Spec, reason: str
) -> None:
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


def compared(path: Path, *specs: Spec) -> tuple[Pair, Analysis]:
    """The one pair of a sweep, whose costs are by today's profiles of the tests."""
    found = analysed(path, *specs)
    vars(found)["costs"] = {c.config_id: measure_cost(c, PROFILES) for c in found.measured}
    return found.pairs[0], found


def test_beside_one_device_a_sample_costs_one_over_the_efficiency(tmp_path: Path) -> None:
    pair, analysis = compared(tmp_path, *repeats(Spec(), STEADY), *repeats(DDP, STEADY))
    found, efficiency = analysis.cost_ratio(pair), pair.efficiency
    each = (analysis.cost(side).usd_per_million_samples for side in (pair.multi, pair.single))
    usd = [figure.value for figure in each if figure]
    assert found.value == pytest.approx(usd[0] / usd[1])
    assert found.value == pytest.approx(1 / efficiency.value)
    ends = (1 / efficiency.interval.high, 1 / efficiency.interval.low)
    assert (found.interval.low, found.interval.high) == pytest.approx(ends)
    assert found.interval.low < found.value < found.interval.high


def test_the_ratio_needs_no_price_but_knows_two_unequal_ones(tmp_path: Path) -> None:
    pair, analysis = compared(tmp_path, Spec(), DDP)
    multi, costs = pair.multi.config_id, analysis.costs

    def ratio(costs: dict[str, Cost]) -> float | None:
        vars(analysis)["costs"] = costs
        found = analysis.cost_ratio(pair)
        return found and found.value

    plain = ratio(dict.fromkeys(costs, Cost(None, None, "not known")))
    assert plain == pytest.approx(1 / pair.efficiency.value)
    dear = replace(costs[multi], price=replace(LIST, usd_per_hour=7.5))
    assert ratio({**costs, multi: dear}) == pytest.approx(1.5 / pair.efficiency.value)
    assert ratio({**costs, multi: Cost(None, None, "?")}) is None


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
        ConfigError, match=r"^--samples: found '.*'; allowed: a whole number .*1e9$"
    ):
        read_samples(typed)
