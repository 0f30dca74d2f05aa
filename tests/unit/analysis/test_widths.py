"""Numbers of devices side by side: gains over the next smaller one, from known step times."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from fakes.recorded import DDP, DDP_MS, STEADY_3, Spec, repeats, step_ms, swept
from scalewise.analysis import Analysis, analyse, fastest_of_each
from scalewise.analysis.ranking import Ladder, devices_to_take, ladders
from scalewise.analysis.statistics import Interval, estimate_ratio

OTHERS_MS = sum(DDP_MS.values()) - DDP_MS["forward"]


def wide(devices: int, step: float, **changes: object) -> Spec:
    """DDP on ``devices``, whose step takes ``step`` ms."""
    phases = {**DDP_MS, "forward": step - OTHERS_MS}
    return replace(DDP, devices=devices, phases_ms=phases, **changes)  # type: ignore[arg-type]


WIDTHS = (Spec(), wide(2, 6.0), wide(4, 5.0), wide(8, 5.5))


def analysed(path: Path, specs: Sequence[Spec], factors: Sequence[float] = STEADY_3) -> Analysis:
    return analyse(swept(path, *(s for one in specs for s in repeats(one, factors))))


def found(path: Path, specs: Sequence[Spec], factors: Sequence[float] = STEADY_3) -> Ladder:
    (ladder,) = ladders(analysed(path, specs, factors).pairs)
    return ladder


def test_each_width_is_beside_the_next_smaller_one(tmp_path: Path) -> None:
    single, two, four, eight = found(tmp_path, WIDTHS[::-1])
    assert [w.devices for w in (single, two, four, eight)] == [1, 2, 4, 8]
    assert (single.pair, single.smaller, single.gain) == (None, None, None)
    assert [w.smaller for w in (two, four, eight)] == [1, 2, 4]
    steps = [step_ms(spec) for spec in WIDTHS]
    expected = [before / after for before, after in pairwise(steps)]
    gains = [w.gain.value for w in (two, four, eight) if w.gain]
    assert gains == pytest.approx(expected, rel=1e-3)
    assert [w.beats_smaller for w in (two, four, eight)] == [True, True, False]


def test_its_interval_is_that_of_pairs_of_the_two_widths(tmp_path: Path) -> None:
    factors = ([1.0, 1.04, 0.97], [1.0, 1.0, 1.02], [0.99, 1.0, 1.0])
    specs = zip((Spec(), wide(4, 4.0), wide(8, 3.0)), factors, strict=True)
    found = analyse(swept(tmp_path, *(s for one, each in specs for s in repeats(one, each))))
    ((_, four, eight),) = ladders(found.pairs)
    sides = [dict(enumerate(w.config.values("global_samples_per_s"))) for w in (eight, four)]
    expected = estimate_ratio(*sides)
    assert expected.paired
    assert (eight.gain, four.gain) == (expected, four.pair.speedup)
    tie = replace(expected, interval=Interval(0.9, 1.2))
    assert eight.beats_smaller and not replace(eight, gain=tie).beats_smaller


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
    other = wide(4, 4.5, strategy="fsdp")
    medium = [replace(spec, model="medium") for spec in (WIDTHS[0], WIDTHS[2])]
    each = ladders(analysed(tmp_path, [*WIDTHS, other, *medium]).pairs)
    labels = [[width.config.label for width in ladder] for ladder in each]
    assert sorted(labels) == [
        ["large single x1", "large ddp x2", "large ddp x4", "large ddp x8"],
        ["large single x1", "large fsdp x4"],
        ["medium single x1", "medium ddp x4"],
    ]


def test_a_setting_of_the_strategy_is_not_mixed_with_another(tmp_path: Path) -> None:
    settings = {"strategy": {"name": "ddp", "devices": 4, "no_sync": True}}
    others = {"strategy": {"name": "ddp", "devices": 8, "no_sync": False}}
    alike = {"strategy": {"name": "ddp", "devices": 8, "no_sync": True}}
    specs = (Spec(), wide(4, 4.0, config=settings), wide(8, 3.0, config=others))
    assert len(ladders(analysed(tmp_path / "mixed", specs).pairs)) == 2
    specs = (*specs[:2], wide(8, 3.0, config=alike))
    assert len(found(tmp_path / "alike", specs)) == 3


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
