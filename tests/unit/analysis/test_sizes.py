"""Known speedups by size in, known break-even sizes out; the rule beside the measurement."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from fakes import recorded
from fakes.recorded import DDP, DDP_MS, STEADY_3, Spec, analysed, repeats, swept, write_sweep
from scalewise.analysis import Analysis, Pair, RatioEstimate, analyse, fastest_of_each, load_sweep
from scalewise.analysis.decisions import threshold_rule
from scalewise.analysis.ranking import Ladder, devices_to_take, ladders
from scalewise.analysis.sizes import (
    BreakEven,
    SizedPair,
    average_speedups,
    break_evens,
    size_families,
)
from scalewise.analysis.statistics import Interval, estimate_ratio
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
    found = replace(pair, speedup=RatioEstimate(speedup, (3, 3), interval, 0.01))
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
    of_single_runs = break_even(pair, [(1_000_000, 0.9), (4_000_000, 1 / 0.9)], None)
    assert (of_single_runs.parameters, of_single_runs.interval) == (pytest.approx(2e6), None)


def test_its_interval_ends_where_the_speedup_is_told_from_the_level(pair: Pair) -> None:
    half, sizes, logs = 0.05, (1e6, 4e6), (math.log(0.9), -math.log(0.9))
    rows = [(int(p), math.exp(y)) for p, y in zip(sizes, logs, strict=True)]
    found = break_even(pair, rows, half)
    for end in (found.interval.low, found.interval.high):
        w = math.log(end / sizes[0]) / math.log(sizes[1] / sizes[0])
        y, h = (1 - w) * logs[0] + w * logs[1], half * math.hypot(1 - w, w)
        assert abs(y) == pytest.approx(h)
    assert found.interval.low < 2e6 < found.interval.high


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
    assert (len(found.crossings), found.parameters is None) == (crossings, crossings != 1)
    assert found.reached.startswith(reached)
    interval = found.interval
    assert (interval is not None and interval.low is not None) == low
    assert (interval is not None and interval.high is not None) == high


@pytest.mark.parametrize(
    ("parameters", "batch", "verdict", "right"),
    [
        (100_000, 128, "does not pay", True), (100_000, 128, "pays", False),
        (20_000_000, 64, "pays", True), (20_000_000, 64, "does not pay", False),
        (20_000_000, 64, "undecided", None), (7_000_000, 64, "pays", None),
    ],
)  # fmt: skip
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
        recorded.edit_ranks(
            path, lambda r, p=parameters: r.update(parameters_total=p), f"*-{name}-*"
        )  # type: ignore[misc]
    (family,) = size_families(analyse(load_sweep(path)).pairs)
    assert [row.parameters for row in family] == [1_000_000, 3_000_000]


def test_a_mean_speedup_mixes_batches_and_nothing_else(tmp_path: Path) -> None:
    specs = [
        one
        for batch, data in ((32, "tabular"), (64, "tabular"), (128, "tabular"), (64, "images"))
        for spec in (Spec(), DDP)
        for one in repeats(replace(spec, batch_size=batch, dataset=data), STEADY)
    ]
    (mean,) = average_speedups(analysed(tmp_path, *specs).pairs)
    assert mean.batches == (32, 64, 128)
    values = [p.speedup.value for p in mean.pairs]
    assert mean.speedup.value == pytest.approx(math.prod(values) ** (1 / 3))
    halves = [math.log(p.speedup.interval.high / p.speedup.value) for p in mean.pairs
              if p.speedup.interval]  # fmt: skip
    expected = mean.speedup.value * math.exp(math.hypot(*halves) / 3)
    assert mean.speedup.interval.high == pytest.approx(expected)
    assert mean.verdicts == {"pays": [32, 64, 128]}


# Numbers of devices side by side: gains over the next smaller one, from known step times.
OTHERS_MS = sum(DDP_MS.values()) - DDP_MS["forward"]


def wide(devices: int, step: float, **changes: object) -> Spec:
    """DDP on ``devices``, whose step takes ``step`` ms."""
    phases = {**DDP_MS, "forward": step - OTHERS_MS}
    return replace(DDP, devices=devices, phases_ms=phases, **changes)  # type: ignore[arg-type]


WIDTHS = (Spec(), wide(2, 6.0), wide(4, 5.0), wide(8, 5.5))


def widths(path: Path, specs: Sequence[Spec], factors: Sequence[float] = STEADY_3) -> Analysis:
    return analyse(swept(path, *(s for one in specs for s in repeats(one, factors))))


def found(path: Path, specs: Sequence[Spec], factors: Sequence[float] = STEADY_3) -> Ladder:
    (ladder,) = ladders(widths(path, specs, factors).pairs)
    return ladder


def test_each_width_is_beside_the_next_smaller_one(tmp_path: Path) -> None:
    single, two, four, eight = found(tmp_path, WIDTHS[::-1])
    assert [w.devices for w in (single, two, four, eight)] == [1, 2, 4, 8]
    assert (single.pair, single.smaller, single.gain) == (None, None, None)
    assert [w.smaller for w in (two, four, eight)] == [1, 2, 4]
    expected = [
        before / after for before, after in pairwise([recorded.step_ms(spec) for spec in WIDTHS])
    ]
    assert [w.gain.value for w in (two, four, eight) if w.gain] == pytest.approx(expected, rel=1e-3)
    assert [w.gain.is_above(1) for w in (two, four, eight)] == [True, True, False]


def test_its_interval_is_that_of_pairs_of_the_two_widths(tmp_path: Path) -> None:
    factors = ([1.0, 1.04, 0.97], [1.0, 1.0, 1.02], [0.99, 1.0, 1.0])
    specs = zip((Spec(), wide(4, 4.0), wide(8, 3.0)), factors, strict=True)
    found = analyse(swept(tmp_path, *(s for one, each in specs for s in repeats(one, each))))
    ((_, four, eight),) = ladders(found.pairs)
    sides = [dict(enumerate(w.config.values("global_samples_per_s"))) for w in (eight, four)]
    expected = estimate_ratio(*sides)
    assert expected.paired
    assert (eight.gain, four.gain) == (expected, four.pair.speedup)
    assert eight.gain.is_above(1) and not replace(expected, interval=Interval(0.9, 1.2)).is_above(1)


@pytest.mark.parametrize(
    ("steps", "factors", "taken"),
    [
        ((6.0, 3.0, 1.6), STEADY_3, 8),  # all pay, and each beats the one before
        ((6.0, 3.0, 2.9), STEADY_3, 4),  # eight are faster, and less than half of linear
        ((11.0, 11.0, 11.0), STEADY_3, 1),
        ((6.0, 3.0, 1.6), [1.0], 1),  # one run decides nothing
    ],
)
def test_so_many_devices_are_taken_as_pay_and_beat_fewer(
    tmp_path: Path, steps: Sequence[float], factors: Sequence[float], taken: int
) -> None:
    specs = [Spec(), *(wide(2**i, ms) for i, ms in enumerate(steps, start=1))]
    assert devices_to_take(found(tmp_path, specs, factors)).devices == taken


def test_another_strategy_or_workload_is_another_ladder(tmp_path: Path) -> None:
    medium = [replace(spec, model="medium") for spec in (WIDTHS[0], WIDTHS[2])]
    each = ladders(widths(tmp_path, [*WIDTHS, wide(4, 4.5, strategy="fsdp"), *medium]).pairs)
    assert sorted([width.config.label for width in ladder] for ladder in each) == [
        ["large single x1", "large ddp x2", "large ddp x4", "large ddp x8"],
        ["large single x1", "large fsdp x4"],
        ["medium single x1", "medium ddp x4"],
    ]


def test_a_setting_of_the_strategy_is_not_mixed_with_another(tmp_path: Path) -> None:
    settings = {"strategy": {"name": "ddp", "devices": 4, "no_sync": True}}
    others = {"strategy": {"name": "ddp", "devices": 8, "no_sync": False}}
    alike = {"strategy": {"name": "ddp", "devices": 8, "no_sync": True}}
    specs = (Spec(), wide(4, 4.0, config=settings), wide(8, 3.0, config=others))
    assert len(ladders(widths(tmp_path / "mixed", specs).pairs)) == 2
    assert len(found(tmp_path / "alike", (*specs[:2], wide(8, 3.0, config=alike)))) == 3


def test_of_two_placements_of_as_many_devices_the_fastest_is_the_one_before(tmp_path: Path) -> None:
    near, far = (
        wide(2, ms, config={"hardware": {"name": "auto", "gpus": gpus}})
        for ms, gpus in ((6.0, [0, 1]), (9.0, [0, 4]))
    )
    single, *twos, four = found(tmp_path, (Spec(), near, far, wide(4, 5.0)))
    assert [two.smaller for two in twos] == [1, 1]
    assert four.gain.value == pytest.approx(6.0 / 5.0, rel=1e-3)
    slower, faster = sorted(twos, key=lambda two: two.pair.speedup.value if two.pair else 0.0)
    assert fastest_of_each((single, slower, faster, four)) == (single, faster, four)
    assert fastest_of_each((single, faster, slower, four)) == (single, faster, four)


def test_widths_that_differ_from_each_other_have_no_gain(tmp_path: Path) -> None:
    """Records of one device without the file's sum excuse what two others do not agree in."""
    two, four = (wide(n, ms, data={"file": told}) for n, ms, told in ((2, 6.0, "a"), (4, 5.0, "b")))
    ladder = found(tmp_path, (Spec(), two, four))
    assert [width.gain is None for width in ladder] == [True, False, True]
    assert all(width.pair for width in ladder[1:])
