"""Known speedups by size in, known break-even sizes out; the rule beside the measurement."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.recorded import DDP, Spec, analysed, edit_ranks, repeats, write_sweep
from scalewise.analysis import Pair, RatioEstimate, analyse, load_sweep
from scalewise.analysis.decisions import threshold_rule
from scalewise.analysis.sizes import (
    BreakEven,
    SizedPair,
    average_speedups,
    break_evens,
    size_families,
)
from scalewise.analysis.statistics import Interval
from scalewise.analysis.verdict import Verdict

STEADY = [1.0, 1.001, 0.999]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    path = tmp_path_factory.mktemp("pair")
    (found,) = analysed(path, *repeats(Spec(), STEADY), *repeats(DDP, STEADY)).pairs
    return found


def sized(
    pair: Pair, parameters: int, speedup: float, half: float | None = 0.01, batch: int = 128
) -> SizedPair:
    """A pair with this speedup; ``half`` is of its interval, on logarithms."""
    interval = None if half is None else Interval(*(speedup * math.exp(s * half) for s in (-1, 1)))
    figure = RatioEstimate(speedup, (3, 3), interval, 0.01)
    found = replace(pair, speedup=figure)
    return SizedPair(parameters, batch, found, threshold_rule(parameters, batch))


def break_even(pair: Pair, rows: Sequence[tuple[int, float]], half: float | None = 0.01,
               level: float = 1.0) -> BreakEven:  # fmt: skip
    family = [sized(pair, p, s, half) for p, s in rows]
    return next(one for one in break_evens(family) if one.level == level)


def test_it_lies_on_a_straight_line_of_logarithms(pair: Pair) -> None:
    found = break_even(pair, [(1_000_000, 0.9), (4_000_000, 1 / 0.9), (16_000_000, 1.5)])
    assert found.parameters == pytest.approx(2e6)
    assert found.reached.startswith("from ")
    at_eleven = break_even(pair, [(1_000_000, 1.0), (100_000_000, 1.21)], level=1.1)
    assert at_eleven.parameters == pytest.approx(1e7)


def test_its_interval_ends_where_the_speedup_is_told_from_the_level(pair: Pair) -> None:
    half, sizes, logs = 0.05, (1e6, 4e6), (math.log(0.9), -math.log(0.9))
    rows = [(int(p), math.exp(y)) for p, y in zip(sizes, logs, strict=True)]
    found = break_even(pair, rows, half)
    for end in (found.interval.low, found.interval.high):
        assert end is not None
        w = math.log(end / sizes[0]) / math.log(sizes[1] / sizes[0])
        y, h = (1 - w) * logs[0] + w * logs[1], half * math.hypot(1 - w, w)
        assert abs(y) == pytest.approx(h)
    assert found.interval.low < 2e6 < found.interval.high  # type: ignore[operator]


@pytest.mark.parametrize(
    ("speedups", "half", "crossings", "low", "high", "reached"),
    [
        ((0.5, 0.6, 0.7), 0.05, 0, False, False, "nowhere"),  # never, and told from 1
        ((0.5, 0.7, 0.98), 0.05, 0, True, False, "nowhere"),  # the largest size is left open
        ((1.2, 1.3, 1.4), 0.05, 0, False, False, "everywhere"),  # at every size
        ((0.9, 1.2, 0.9), 0.05, 2, True, True, "with changes at 1."),  # twice
        ((0.97, 1.2, 1.3), 0.05, 1, False, True, "from 1."),  # the smallest size is left open
    ],
)
def test_a_level_is_met_never_once_or_twice(
    pair: Pair, speedups: tuple[float, ...], half: float, crossings: int, low: bool, high: bool,
    reached: str,
) -> None:  # fmt: skip
    rows = list(zip((1_000_000, 3_000_000, 9_000_000), speedups, strict=True))
    found = break_even(pair, rows, half)
    assert len(found.crossings) == crossings
    assert (found.parameters is None) == (crossings != 1)
    assert found.reached.startswith(reached)
    interval = found.interval
    assert (interval is not None and interval.low is not None) == low
    assert (interval is not None and interval.high is not None) == high


def test_single_runs_give_a_size_without_an_interval(pair: Pair) -> None:
    found = break_even(pair, [(1_000_000, 0.9), (4_000_000, 1 / 0.9)], None)
    assert (found.parameters, found.interval) == (pytest.approx(2e6), None)


@pytest.mark.parametrize(
    ("parameters", "batch", "verdict", "right"),
    [
        (100_000, 128, "does not pay", True),
        (100_000, 128, "pays", False),
        (20_000_000, 64, "pays", True),
        (20_000_000, 64, "does not pay", False),
        (20_000_000, 64, "undecided", None),
        (7_000_000, 64, "pays", None),
    ],
)
def test_the_rule_is_right_where_the_verdict_says_the_same(
    pair: Pair, parameters: int, batch: int, verdict: Verdict, right: bool | None
) -> None:
    one = sized(pair, parameters, 1.0, batch=batch)
    judged = replace(one.pair, judgement=replace(one.pair.judgement, verdict=verdict))
    assert replace(one, pair=judged).rule_is_right is right


def test_only_sizes_of_one_model_make_a_family(tmp_path: Path) -> None:
    specs = []
    for name, target, data in (
        ("a", "x.Sized", "tabular"), ("b", "x.Sized", "tabular"), ("c", "x.Other", "tabular"),
        ("d", "x.Sized", "images"),
    ):  # fmt: skip
        model = {"model": {"name": name, "_target_": target}}
        for spec in (Spec(model=name, dataset=data, config=model),
                     replace(DDP, model=name, dataset=data, config=model)):  # fmt: skip
            specs += repeats(spec, STEADY)
    path = write_sweep(tmp_path, specs)
    for name, parameters in (("a", 3_000_000), ("b", 1_000_000), ("c", 2_000_000), ("d", 9)):
        edit_ranks(path, lambda r, p=parameters: r.update(parameters_total=p), f"*-{name}-*")  # type: ignore[misc]
    (family,) = size_families(analyse(load_sweep(path)).pairs)
    assert [row.parameters for row in family] == [1_000_000, 3_000_000]


def test_a_mean_speedup_mixes_batches_and_nothing_else(tmp_path: Path) -> None:
    specs = [
        one
        for batch, data in ((32, "tabular"), (64, "tabular"), (128, "tabular"), (64, "images"))
        for spec in (Spec(), DDP)
        for one in repeats(replace(spec, batch_size=batch, dataset=data), STEADY)
    ]
    pairs = analysed(tmp_path, *specs).pairs
    (mean,) = average_speedups(pairs)
    assert mean.batches == (32, 64, 128)
    values = [p.speedup.value for p in mean.pairs]
    assert mean.speedup.value == pytest.approx(math.prod(values) ** (1 / 3))
    halves = [math.log(p.speedup.interval.high / p.speedup.value) for p in mean.pairs
              if p.speedup.interval]  # fmt: skip
    expected = mean.speedup.value * math.exp(math.hypot(*halves) / 3)
    assert mean.speedup.interval.high == pytest.approx(expected)
    assert mean.verdicts == {"pays": [32, 64, 128]}
