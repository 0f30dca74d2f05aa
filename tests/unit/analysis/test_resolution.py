"""What the runs of a pair could have shown, by the test of its own verdict."""

from pathlib import Path

import pytest

from fakes.recorded import DDP, Spec, analysed, repeats
from fakes.sections import lines_of
from scalewise.analysis import Pair, detectable_speedup
from scalewise.analysis.statistics import minimum_detectable_effect
from scalewise.analysis.verdict import nominal_level

NOISY = [1.0, 1.4, 0.8, 1.1]


def pair_of(path: Path, config: dict[str, object]) -> Pair:
    single, ddp = Spec(config=config), Spec(**{**vars(DDP), "config": config})
    specs = [*repeats(single, NOISY), *repeats(ddp, NOISY)]
    (pair,) = analysed(path, *specs).pairs
    return pair


def test_a_plain_pair_is_tested_at_its_interval(tmp_path: Path) -> None:
    pair = pair_of(tmp_path, {})
    least = detectable_speedup(pair)
    interval = pair.speedup.interval
    assert interval is not None
    assert least is not None
    assert least > interval.high / pair.speedup.value
    sides = [c.values("samples_per_s") for c in (pair.multi, pair.single)]
    assert least == pytest.approx(minimum_detectable_effect(sides[0], sides[1], 0.05))
    (said,) = [w for w in lines_of(tmp_path, "doubts") if "four times" in w]
    assert f"only a speedup beyond {least:.2f} " in said


def test_under_repeats_auto_it_is_the_last_look(tmp_path: Path) -> None:
    """Three of the four runs, at the small part of the error that the first look may spend."""
    pair = pair_of(tmp_path, {"repeats": "auto", "precision_percent": 2, "max_repeats": 50})
    sides = [c.values("samples_per_s")[:3] for c in (pair.multi, pair.single)]
    least = detectable_speedup(pair)
    assert least == pytest.approx(
        minimum_detectable_effect(sides[0], sides[1], nominal_level(3, cap=50))
    )
    assert pair.speedup.interval is not None
    assert least is not None
    assert least > pair.speedup.interval.high / pair.speedup.value
