"""Data files of ours that will not do are refused before anything starts, without torch."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scalewise.config import Component, ConfigError
from scalewise.datasets import AG_NEWS, read_labelled_csv
from scalewise.datasets.token_index import TokenIndex
from scalewise.records import save_json
from scalewise.sweep.preflight import check_files

TOKENS = "scalewise.datasets.text_file.TokenFolder"
AG_NEWS_TARGET = "scalewise.datasets.text_classification.AgNews"
TEXT = "scalewise.datasets.text_file.TextFile"


def request(target: str, **arguments: Any) -> Any:
    dataset = Component(target, "mine", arguments)
    return SimpleNamespace(cell=SimpleNamespace(dataset=dataset, ckpt_path=None, script=None))


def test_what_is_there_passes_and_what_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    there = tmp_path / "there.csv"
    there.touch()
    mine = request("mine.Data", path="gone.csv")
    check_files([request("scalewise.datasets.X", path=str(there)), mine])
    check_files([request("scalewise.datasets.X", path=None)])


def test_what_cannot_be_read_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "loop.csv").symlink_to(tmp_path / "loop.csv")
    for target, key, name, found in (
        ("scalewise.datasets.X", "path", "gone", "gone cannot be read: No .*a file that is there"),
        ("scalewise.datasets.X", "root", "gone", "gone cannot be read: No .*a folder that is the"),
        (TEXT, "path", "pipe.csv", "neither a file nor a folder"),
        (AG_NEWS_TARGET, "path", "pipe.csv", "neither a file nor a folder"),
        (TEXT, "path", "loop.csv", "cannot be read: Too many levels of symbolic links"),
    ):
        given: dict[str, Any] = {key: str(tmp_path / name)}
        with pytest.raises(ConfigError, match=rf"^dataset\.{key}: .*{found}"):
            check_files([request(target, **given)])


def test_tokens_that_are_missing_or_torn_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"index\.json: no such record; .*tokenize"):
        check_files([request(TOKENS, path=str(tmp_path / "gone"))])
    save_json(tmp_path / "index.json", TokenIndex("text", "bytes", 256, 0, 30, 30))
    for part in ("train", "validation"):
        (tmp_path / f"{part}.bin").write_bytes(b"\1\0" * 31)
    asked = request(TOKENS, path=str(tmp_path))
    check_files([asked])
    (tmp_path / "train.bin").write_bytes(b"\1\0" * 29)
    with pytest.raises(ConfigError, match=r"train\.bin: found 58 bytes; allowed: 60 or more"):
        check_files([asked])
    (tmp_path / "train.bin").unlink()
    with pytest.raises(ConfigError, match=r"train\.bin: found 0 bytes"):
        check_files([asked])
    (tmp_path / "index.json").write_text("{")
    with pytest.raises(ConfigError, match=r"index\.json: cannot be read as JSON"):
        check_files([asked])


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (b"1,a title,a text\n2,no text\n", "row 2: found 2 columns; allowed: 3"),
        (b"Class,Title,Description\n5,a,b\n", "row 2: found class '5'; allowed: 1, 2, 3, 4"),
        (b"1,a,b\n2, ,\n", "row 2: found no text"),
        (b'1,a,b\n2,"a,b\n', "row 2: found malformed CSV"),
        (b"1,a,b\n2,\xff,b\n", "found a byte that is not UTF-8"),
        (b"", "found no rows"),
        (b"class,title,description\n", "found no rows"),
    ],
)
def test_a_csv_file_is_refused_in_the_words_of_the_rank(
    tmp_path: Path, rows: bytes, found: str
) -> None:
    path = tmp_path / "news.csv"
    path.write_bytes(rows)
    with pytest.raises(ValueError) as by_rank:
        read_labelled_csv(path, AG_NEWS)
    with pytest.raises(ConfigError) as by_plan:
        check_files([request(AG_NEWS_TARGET, path=str(path))])
    assert str(by_plan.value) == str(by_rank.value)
    assert found in str(by_plan.value)


def test_of_a_long_csv_file_only_the_beginning_is_read(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    path.write_bytes(b"1,a,b\n" * 10 + b"wrong\n")
    assert len(read_labelled_csv(path, AG_NEWS, most_rows=10)) == 10
    with pytest.raises(ValueError, match="row 11: found 1 columns"):
        read_labelled_csv(path, AG_NEWS)


@pytest.mark.parametrize("first", ['"1",', "class,"])
def test_the_byte_order_mark_of_a_spreadsheet_is_no_part_of_the_first_cell(
    tmp_path: Path, first: str
) -> None:
    path = tmp_path / "excel.csv"
    path.write_text(f'{first}title,description\n"2",b,c\n', encoding="utf-8-sig")
    assert len(read_labelled_csv(path, AG_NEWS)) == (1 if first == "class," else 2)
