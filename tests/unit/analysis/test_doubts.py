"""Doubts about runs that did not read the same data, or did not run the same code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from recorded import DDP, Spec, repeats, write_sweep

from scalewise.analysis.compare import compare
from scalewise.analysis.load import Sweep, load_sweep
from scalewise.analysis.summary import analyse
from scalewise.report.findings import warnings

FACTORS = [1.0, 1.01, 0.99]
OLD, NEW = {"path": "100 bytes (sha256 a)"}, {"path": "200 bytes (sha256 b)"}
NAMED = {"dataset": {"name": "ag_news", "path": "x.csv"}}


def swept(path: Path, *specs: Spec) -> Sweep:
    return load_sweep(write_sweep(path, specs))


def test_a_file_that_changed_between_cells_is_a_doubt_of_their_report(tmp_path: Path) -> None:
    first = Spec(seed=1, data=OLD, config=NAMED)
    same = analyse(swept(tmp_path / "same", first, replace(first, seed=2)))
    assert not [line for line in warnings(same) if "dataset.path" in line]
    spelt = {"dataset": {"name": "ag_news", "path": "./x.csv"}}
    changed = replace(first, seed=2, data=NEW, config=spelt)
    other = analyse(swept(tmp_path / "other", first, changed))
    (line,) = [line for line in warnings(other) if "dataset.path" in line]
    assert line == (
        "dataset.path=x.csv changed between cells (100 bytes (sha256 a), 200 bytes (sha256 b)): "
        "their results are of different data"
    )


def test_a_pair_whose_repeats_read_different_data_is_doubted(tmp_path: Path) -> None:
    sides = [*repeats(Spec(data=OLD), FACTORS), *repeats(replace(DDP, data=OLD), FACTORS)]
    mixed = [replace(spec, data=NEW) if spec.repeat == 2 else spec for spec in sides]
    (sound,) = analyse(swept(tmp_path / "sound", *sides)).pairs
    (pair,) = analyse(swept(tmp_path / "mixed", *mixed)).pairs
    assert sound.doubts == ()
    assert pair.doubts == (
        "its runs read different data: dataset.path was 100 bytes (sha256 a) and 200 bytes "
        "(sha256 b)",
    )
    assert pair.doubts[0] in pair.judgement.reason


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
    assert not [line for line in warnings(same) if "mine.Net" in line]
    older = analyse(swept(tmp_path / "older", first, replace(again, own_code={})))
    assert not [line for line in warnings(older) if "mine.Net" in line], "unknown, not different"
    changed = analyse(swept(tmp_path / "changed", first, replace(again, own_code=IS)))
    (line,) = [line for line in warnings(changed) if "mine.Net" in line]
    assert line == (
        "your mine.Net changed between cells (30 bytes (sha256 a), 40 bytes (sha256 b)): their "
        "results are of different code"
    )


def test_a_pair_whose_repeats_ran_different_code_is_doubted(tmp_path: Path) -> None:
    sides = [*repeats(Spec(own_code=WAS), FACTORS), *repeats(replace(DDP, own_code=WAS), FACTORS)]
    mixed = [replace(spec, own_code=IS) if spec.repeat == 2 else spec for spec in sides]
    (pair,) = analyse(swept(tmp_path / "mixed", *mixed)).pairs
    assert pair.doubts == (
        "its runs ran different code: your mine.Net was 30 bytes (sha256 a) and 40 bytes "
        "(sha256 b)",
    )
    assert pair.doubts[0] in pair.judgement.reason


def test_sweeps_of_different_own_code_are_compared_only_under_that_factor(tmp_path: Path) -> None:
    a = swept(tmp_path / "a", Spec(own_code=WAS))
    b = swept(tmp_path / "b", Spec(own_code=IS))
    (refused,) = compare(a, b, "dataset").unmatched
    assert "own_code.mine.Net: 30 bytes (sha256 a) against 40 bytes" in refused.reason
    assert len(compare(a, b, "code").matches) == 1
