"""Records of a tree that is no git checkout say that nobody knows which code they are of."""

import dataclasses
from io import StringIO
from pathlib import Path

from recorded import Spec, repeats, write_sweep
from rich.console import Console
from scalewise.report.provenance import provenance_lines

from scalewise.analysis.load import load_sweep
from scalewise.analysis.summary import analyse
from scalewise.records import SweepFolder
from scalewise.records.provenance import WORKING_DIRECTORY
from scalewise.report import build, print_console


def without_commit(path: Path, *which: int) -> Path:
    write_sweep(path, repeats(Spec(), [1.0, 1.01, 0.99]))
    for index, (_, folder) in enumerate(SweepFolder(path).cells()):
        if index in which:
            folder.save_provenance(dataclasses.replace(folder.load_provenance(), code={}))
    return path


def lines(path: Path) -> list[str]:
    found = provenance_lines(analyse(load_sweep(path)))
    return [line for line in found if line.startswith(("scalewise commit", "commit"))]


def test_a_commit_that_nobody_knows_is_said(tmp_path: Path) -> None:
    path = without_commit(tmp_path, 0, 1, 2)
    assert lines(path) == ["scalewise commit: unknown (not a git checkout)"]
    said = build(path).markdown.read_text()
    assert "- scalewise commit: unknown (not a git checkout)\n" in said


def test_one_of_some_cells_stands_beside_the_others(tmp_path: Path) -> None:
    assert lines(without_commit(tmp_path / "some", 1)) == [
        "scalewise commit: a1b2c3d4e5f6, unknown for 1 of 3 cells (not a git checkout)"
    ]
    assert lines(without_commit(tmp_path / "none")) == ["scalewise commit: a1b2c3d4e5f6"]


def test_the_hash_of_the_sources_stands_in_its_place(tmp_path: Path) -> None:
    sources = dataclasses.replace(Spec(), commit=None, source_sha256="5" * 64)
    path = write_sweep(tmp_path, repeats(sources, [1.0, 1.01]))
    found = provenance_lines(analyse(load_sweep(path)))
    assert "scalewise sources (SHA-256): 555555555555" in found
    assert lines(path) == []


def test_the_screen_names_the_code_in_the_words_of_the_page(tmp_path: Path) -> None:
    path = without_commit(tmp_path, 1)
    first = next(folder for _, folder in SweepFolder(path).cells())
    known = first.load_provenance()
    first.save_provenance(dataclasses.replace(known, code={**known.code, "dirty": True}))
    text = StringIO()
    print_console(path, Console(file=text, width=200))
    shown = [
        one
        for one in text.getvalue().splitlines()
        if one.startswith(("scalewise commit", "commit"))
    ]
    assert shown == lines(path)
    assert shown == [
        "scalewise commit: a1b2c3d4e5f6 with uncommitted changes, a1b2c3d4e5f6, "
        "unknown for 1 of 3 cells (not a git checkout)"
    ]


def test_a_users_commit_is_not_taken_for_scalewises(tmp_path: Path) -> None:
    write_sweep(tmp_path, repeats(Spec(), [1.0, 1.01, 0.99]))
    for _, folder in SweepFolder(tmp_path).cells():
        known = folder.load_provenance()
        users = {**known.code, "tree": WORKING_DIRECTORY}
        folder.save_provenance(dataclasses.replace(known, code=users))
    assert lines(tmp_path) == ["commit of the working directory: a1b2c3d4e5f6"]
