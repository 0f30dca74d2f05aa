"""Doubts about runs that did not read the same data, or did not run the same code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recorded import DDP, Spec, repeats, step_ms, write_sweep

from fakes.sections import lines_of
from scalewise.analysis.cells import Sweep
from scalewise.analysis.compare import compare
from scalewise.analysis.load import load_sweep
from scalewise.analysis.summary import analyse

FACTORS = [1.0, 1.01, 0.99]
OLD, NEW = {"path": "100 bytes (sha256 a)"}, {"path": "200 bytes (sha256 b)"}
NAMED = {"dataset": {"name": "ag_news", "path": "x.csv"}}


def swept(path: Path, *specs: Spec) -> Sweep:
    return load_sweep(write_sweep(path, specs))


def test_a_file_that_changed_between_cells_is_a_doubt_of_their_report(tmp_path: Path) -> None:
    first = Spec(seed=1, data=OLD, config=NAMED)
    same = analyse(swept(tmp_path / "same", first, replace(first, seed=2)))
    assert not [line for line in lines_of(same, "doubts") if "dataset.path" in line]
    spelt = {"dataset": {"name": "ag_news", "path": "./x.csv"}}
    changed = replace(first, seed=2, data=NEW, config=spelt)
    other = analyse(swept(tmp_path / "other", first, changed))
    (line,) = [line for line in lines_of(other, "doubts") if "dataset.path" in line]
    assert line == (
        "dataset.path=x.csv changed between cells (100 bytes (sha256 a), 200 bytes (sha256 b)): "
        "their results are of different data"
    )


def edited(specs: Sequence[Spec], *which: int, **after: Mapping[str, str]) -> list[Spec]:
    """Those repeats, by their number, found other files; they are three times as fast."""
    new: dict[str, Any] = {**after, "run_factor": 1 / 3}
    return [replace(spec, **new) if spec.repeat in which else spec for spec in specs]


def test_repeats_that_read_other_data_are_not_averaged_with_the_others(tmp_path: Path) -> None:
    first = Spec(data=OLD, config=NAMED)
    sides = [*repeats(first, FACTORS), *repeats(replace(DDP, data=OLD, config=NAMED), FACTORS)]
    mixed = swept(tmp_path / "mixed", *edited(sides, 2, data=NEW))
    sound = swept(tmp_path / "sound", *[s for s in sides if s.repeat != 2])
    (pair,), (alone,) = analyse(mixed).pairs, analyse(sound).pairs
    assert pair.speedup == alone.speedup
    assert pair.judgement == alone.judgement
    for side, kept in ((pair.single, alone.single), (pair.multi, alone.multi)):
        assert side.estimate("samples_per_s") == kept.estimate("samples_per_s")
    (line,) = [w for w in lines_of(analyse(mixed), "doubts") if "large single x1: 002" in w]
    assert line == (
        "large single x1: 002-large-single-r2 is set aside, 1 of 3 repeats: it read other data "
        "than the repeats that are compared: dataset.path=x.csv was 200 bytes (sha256 b), not 100 "
        "bytes (sha256 a)"
    )


def test_sweeps_that_read_different_data_are_compared_only_under_that_factor(
    tmp_path: Path,
) -> None:
    a = swept(tmp_path / "a", Spec(data=OLD))
    b = swept(tmp_path / "b", Spec(data=NEW))
    older = swept(tmp_path / "older", Spec())
    (refused,) = compare(a, b, "code").unmatched
    assert "data_file.path: 100 bytes (sha256 a) against 200 bytes" in refused.reason
    assert len(compare(a, b, "dataset").matches) == 1
    assert len(compare(a, older, "code").matches) == 1, "its records knew of no files yet"


WAS, IS = {"mine.Net": "30 bytes (sha256 a)"}, {"mine.Net": "40 bytes (sha256 b)"}


def test_own_code_that_changed_between_repeats_is_a_doubt_of_their_report(tmp_path: Path) -> None:
    first = Spec(own_code=WAS)
    again = replace(first, repeat=1)
    same = analyse(swept(tmp_path / "same", first, again))
    assert not [line for line in lines_of(same, "doubts") if "mine.Net" in line]
    older = analyse(swept(tmp_path / "older", first, replace(again, own_code={})))
    assert not [line for line in lines_of(older, "doubts") if "mine.Net" in line], (
        "unknown, not different"
    )
    changed = analyse(swept(tmp_path / "changed", first, replace(again, own_code=IS)))
    (line,) = [line for line in lines_of(changed, "doubts") if line.startswith("your mine.Net")]
    assert line == (
        "your mine.Net changed between cells (30 bytes (sha256 a), 40 bytes (sha256 b)): their "
        "results are of different code"
    )


def edited_sides(*which: int, allowed: bool = False) -> list[Spec]:
    """Repeats on one device and on two; before those in ``which`` the class was edited."""
    config = {"sweep": {"allow_mixed": allowed}}
    sides = [replace(spec, own_code=WAS, config=config) for spec in (Spec(), DDP)]
    return edited([r for one in sides for r in repeats(one, FACTORS)], *which, own_code=IS)


def test_repeats_that_ran_other_code_are_not_averaged_with_the_others(tmp_path: Path) -> None:
    found = analyse(swept(tmp_path, *edited_sides(1, 2)))
    (pair,) = found.pairs
    assert pair.doubts == ()
    # The state of most repeats, which ran three times as fast.
    for side, spec in ((pair.single, Spec()), (pair.multi, DDP)):
        assert [run.cell.planned.repeat for run in side.runs] == [1, 2]
        figure = side.estimate("samples_per_s")
        assert figure is not None
        assert figure.value == pytest.approx(3e3 * spec.global_batch / step_ms(spec), rel=0.02)
    assert [line for line in lines_of(found, "doubts") if "large ddp x2: 003-" in line] == [
        "large ddp x2: 003-large-ddp-r0 is set aside, 1 of 3 repeats: it ran other code than the "
        "repeats that are compared: your mine.Net was 30 bytes (sha256 a), not 40 bytes (sha256 b)"
    ]


def test_too_few_repeats_of_one_state_are_no_comparison(tmp_path: Path) -> None:
    sides = [spec for spec in edited_sides(1) if spec.repeat < 2]
    (refused,) = analyse(swept(tmp_path, *sides)).refused
    assert refused.reason.startswith("1 of 2 repeats of large ddp x2 is left, too few: 003-large")
    assert refused.reason.endswith("Add repeats with these files left as they are")


def test_sides_keep_repeats_of_the_same_state(tmp_path: Path) -> None:
    """Of the single device's runs most are of the old state, of all runs most are of the new."""
    single = edited(repeats(Spec(own_code=WAS), [1.0] * 5), 3, 4, own_code=IS)
    multi = edited(repeats(replace(DDP, own_code=WAS), [1.0] * 5), 1, 2, 3, 4, own_code=IS)
    (pair,) = analyse(swept(tmp_path, *single, *multi)).pairs
    assert pair.speedup.n == (4, 2)


def test_one_odd_repeat_does_not_decide_for_many(tmp_path: Path) -> None:
    """Most runs are of the new state; of this configuration, which has one, those of the old."""
    others = [replace(Spec(model=f"m{i}"), own_code=IS) for i in range(3)]
    mixed = edited(repeats(Spec(own_code=WAS), [1.0] * 5), 4, own_code=IS)
    found = analyse(swept(tmp_path, *(r for o in others for r in repeats(o, FACTORS)), *mixed))
    assert [len(c.runs) for c in found.configurations if c.name("model") == "large"] == [4]


def test_repeats_whose_sources_nobody_recorded_are_kept(tmp_path: Path) -> None:
    unknown = [replace(spec, own_code={}) if spec.repeat == 0 else spec for spec in edited_sides(2)]
    (pair,) = analyse(swept(tmp_path, *unknown)).pairs
    assert pair.speedup.n == (2, 2)


def test_a_mixture_that_is_allowed_is_averaged_and_doubted(tmp_path: Path) -> None:
    (pair,) = analyse(swept(tmp_path, *edited_sides(2, allowed=True))).pairs
    assert pair.speedup.n == (3, 3)
    assert pair.doubts == (
        "its runs ran different code: your mine.Net was 30 bytes (sha256 a) and 40 bytes "
        "(sha256 b)",
    )
    assert pair.doubts[0] in pair.judgement.reason


def test_a_comparison_of_sweeps_says_which_repeats_it_leaves_out(tmp_path: Path) -> None:
    a = swept(tmp_path / "a", *edited_sides(2))
    b = swept(tmp_path / "b", *edited_sides())
    found = compare(a, b, "dataset")
    assert [match.ratio.n for match in found.matches] == [(3, 2), (3, 2)]
    assert [(one.side, one.cell) for one in found.left_out] == [
        ("A", "002-large-single-r2"),
        ("A", "005-large-ddp-r2"),
    ]
    assert found.left_out[0].fault.startswith("it ran other code than the repeats that are")


def test_sweeps_of_different_own_code_are_compared_only_under_that_factor(tmp_path: Path) -> None:
    a = swept(tmp_path / "a", Spec(own_code=WAS))
    b = swept(tmp_path / "b", Spec(own_code=IS))
    (refused,) = compare(a, b, "dataset").unmatched
    assert "own_code.mine.Net: 30 bytes (sha256 a) against 40 bytes" in refused.reason
    assert len(compare(a, b, "code").matches) == 1
