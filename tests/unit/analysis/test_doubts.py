"""Runs that did not read the same data, or did not run the same code, are not averaged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.recorded import DDP, Spec, repeats, swept
from scalewise.analysis import analyse, compare

FACTORS = [1.0, 1.01, 0.99]
WAS: dict[str, Any] = {"class_files": {"mine.py": "a" * 64}}
IS: dict[str, Any] = {"class_files": {"mine.py": "b" * 64}}
OLD_DATA: dict[str, Any] = {"data": {"path": "100 bytes (sha256 a)"}}
NEW_DATA: dict[str, Any] = {"data": {"path": "200 bytes (sha256 b)"}}
OLD_COMMIT: dict[str, Any] = {"commit": "a" * 40}
NEW_COMMIT: dict[str, Any] = {"commit": "b" * 40}


def edited(specs: Sequence[Spec], *which: int, **after: Any) -> list[Spec]:
    """Those repeats, by their number, found other files; they are three times as fast."""
    return [replace(s, **after, run_factor=1 / 3) if s.repeat in which else s for s in specs]


def both_sides(was: dict[str, Any], *, allowed: bool = False) -> list[Spec]:
    """Three repeats on one device and three on two."""
    config = {"sweep": {"allow_mixed": allowed}}
    sides = [replace(one, config=config, **was) for one in (Spec(), DDP)]
    return [run for one in sides for run in repeats(one, FACTORS)]


@pytest.mark.parametrize(
    ("was", "now", "field"),
    [
        (WAS, IS, "code.file.mine.py"),
        (OLD_DATA, NEW_DATA, "data_file.path"),
        (OLD_COMMIT, NEW_COMMIT, "code.commit"),
    ],
)
def test_repeats_of_another_state_than_the_latest_are_set_aside(
    tmp_path: Path, was: dict[str, Any], now: dict[str, Any], field: str
) -> None:
    sides = both_sides(was)
    mixed = analyse(swept(tmp_path / "mixed", *edited(sides, 1, 2, **now)))
    alone = analyse(swept(tmp_path / "alone", *[s for s in edited(sides, 1, 2, **now) if s.repeat]))
    (pair,), (sound,) = mixed.pairs, alone.pairs
    assert (pair.speedup, pair.judgement) == (sound.speedup, sound.judgement)
    for side in (pair.single, pair.multi):
        assert [one.cell.planned.repeat for one in side.set_aside] == [0]
        assert field in side.set_aside[0].reason


@pytest.mark.parametrize("unknown", [{"class_files": {}}, {"data": {}}])
def test_files_that_nobody_recorded_are_unknown_and_not_different(
    tmp_path: Path, unknown: dict[str, Any]
) -> None:
    sides = [replace(s, **unknown) if s.repeat == 2 else s for s in both_sides({**WAS, **OLD_DATA})]
    found = analyse(swept(tmp_path / "mixed", *sides))
    (pair,) = found.pairs
    assert (pair.speedup.n, pair.remarks) == ((3, 3), ())
    older = swept(tmp_path / "older", Spec(**unknown))
    assert len(compare(swept(tmp_path / "new", Spec(**WAS)), older, "gpu").matches) == 1


def test_a_mixture_that_is_allowed_is_averaged_and_doubted(tmp_path: Path) -> None:
    sides = edited(both_sides(WAS, allowed=True), 2, **IS)
    found = analyse(swept(tmp_path, *sides))
    (pair,) = found.pairs
    assert pair.speedup.n == (3, 3)
    assert [(one.code, one.about) for one in pair.remarks] == [
        ("mixed", pair.single.config_id), ("mixed", pair.multi.config_id)
    ]  # fmt: skip
    assert "runs are of several code.file.mine.py" in found.say_why(pair)


def test_a_comparison_of_sweeps_says_which_repeats_it_leaves_out(tmp_path: Path) -> None:
    a = swept(tmp_path / "a", *edited(both_sides(WAS), 1, 2, **IS))
    b = swept(tmp_path / "b", *both_sides(IS))
    found = compare(a, b, "dataset")
    assert [match.ratio.n for match in found.matches] == [(3, 2), (3, 2)]
    assert [(one.side, one.cell) for one in found.left_out] == [
        ("A", "000-large-single-r0"),
        ("A", "003-large-ddp-r0"),
    ]


@pytest.mark.parametrize(
    ("was", "now", "factor", "field"),
    [
        (WAS, IS, "code", "code.file.mine.py"),
        (OLD_DATA, NEW_DATA, "dataset", "data_file.path"),
    ],
)
def test_sweeps_of_different_files_are_compared_only_under_that_factor(
    tmp_path: Path, was: dict[str, Any], now: dict[str, Any], factor: str, field: str
) -> None:
    a, b = swept(tmp_path / "a", Spec(**was)), swept(tmp_path / "b", Spec(**now))
    (refused,) = compare(a, b, "gpu").unmatched
    assert [one.field for one in refused.differing] == [field]
    assert len(compare(a, b, factor).matches) == 1
