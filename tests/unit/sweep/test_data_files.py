"""Data files of ours that will not do are refused before anything starts, without torch."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scalewise.config import Component, ConfigError, DatasetError
from scalewise.datasets import AG_NEWS, look_at_csv
from scalewise.datasets.labelled import read_labelled_csv
from scalewise.datasets.text_classification import AgNews, Imdb
from scalewise.datasets.text_file import TextFile
from scalewise.datasets.token_index import Shard, TokenIndex, save_index
from scalewise.datasets.token_shards import TokenShards
from scalewise.models.gpt2 import Gpt2
from scalewise.sweep.preflight import check_files

SHARDS = "scalewise.datasets.token_shards.TokenShards"
AG_NEWS_TARGET = "scalewise.datasets.text_classification.AgNews"
TEXT = "scalewise.datasets.text_file.TextFile"


def request(target: str, batch_size: int = 1, **arguments: Any) -> Any:
    cell = SimpleNamespace(
        dataset=Component(target, "mine", arguments),
        model=Component("mine.Model", "mine", {"vocabulary_size": 2}),
        workload="train",
        batch_size=batch_size,
        scaling="strong",
        strategy=SimpleNamespace(devices=1),
        accumulate_grad_batches=1,
    )
    return SimpleNamespace(cell=cell)


def write_shards(folder: Path, *tokens: int) -> Path:
    """One file of so many tokens each; the last is for validation."""
    folder.mkdir()
    parts = ["train"] * (len(tokens) - 1) + ["validation"]
    shards = []
    for number, (count, part) in enumerate(zip(tokens, parts, strict=True)):
        (folder / f"{number}.bin").write_bytes(b"\1\0" * count)
        shards.append(Shard(f"{number}.bin", part, count, "0" * 64))  # type: ignore[arg-type]
    save_index(folder, TokenIndex("text", "bytes", 256, 0, tuple(shards), complete=True))
    return folder


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
            check_files([request(target, 1, **given)])


def test_shards_are_counted_as_the_dataset_counts_them(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "shards", 101, 57, 30)
    samples = len(TokenShards(str(folder), sequence_length=10).train)
    assert samples == 10 + 5
    check_files([request(SHARDS, 15, path=str(folder), sequence_length=10)])
    with pytest.raises(ConfigError, match=r"^batch_size: found 16 samples .* has 15; allowed: at "):
        check_files([request(SHARDS, 16, path=str(folder), sequence_length=10)])
    with pytest.raises(ConfigError, match=r"^dataset\.sequence_length: found 200, longer than"):
        check_files([request(SHARDS, path=str(folder), sequence_length=200)])


def test_shards_that_are_missing_or_torn_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"index\.json cannot be read: No such file.*tokenize"):
        check_files([request(SHARDS, path=str(tmp_path / "gone"))])
    folder = write_shards(tmp_path / "shards", 101, 30)
    (folder / "0.bin").write_bytes(b"\1\0" * 100)
    with pytest.raises(ConfigError, match=r"0\.bin: found 200 bytes; allowed: 202 bytes"):
        check_files([request(SHARDS, path=str(folder), sequence_length=10)])
    (folder / "0.bin").unlink()
    with pytest.raises(ConfigError, match=r"0\.bin: found no such file"):
        check_files([request(SHARDS, path=str(folder), sequence_length=10)])
    (folder / "index.json").write_text("{")
    with pytest.raises(ConfigError, match=r"index\.json: found no "):
        check_files([request(SHARDS, path=str(folder), sequence_length=10)])


@pytest.mark.parametrize(("vocabulary", "accepted"), [(255, False), (256, True), (257, True)])
def test_tokens_that_the_model_does_not_know_are_refused_as_it_refuses_them(
    tmp_path: Path, vocabulary: int, accepted: bool
) -> None:
    folder = write_shards(tmp_path / "shards", 101, 30)  # of a vocabulary of 256
    asked = request(SHARDS, path=str(folder), sequence_length=10)
    check_files([asked])  # a model of the user's, whose arguments are his
    sizes = {"context_length": 10, "layers": 1, "heads": 1, "width": 4}
    arguments = {"vocabulary_size": vocabulary, **sizes}
    asked.cell.model = Component("scalewise.models.gpt2.Gpt2", "gpt2", arguments)
    description = TokenShards(str(folder), sequence_length=10).describe()
    model = Gpt2(vocabulary, **sizes)
    if accepted:
        model.check_data(description)
        check_files([asked])
        return
    with pytest.raises(ValueError) as by_rank:
        model.check_data(description)
    with pytest.raises(ConfigError) as by_plan:
        check_files([asked])
    assert str(by_plan.value) == str(by_rank.value)
    assert "model.vocabulary_size: found 255; allowed: at least 256" in str(by_plan.value)


@pytest.mark.parametrize("size", [1000, 107, 64])
@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.25])
@pytest.mark.parametrize("length", [5, 6, 16, 99])
def test_a_text_file_is_judged_as_the_dataset_judges_it(
    tmp_path: Path, size: int, fraction: float, length: int
) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(b"x" * size)
    arguments: dict[str, Any] = {
        "path": str(text),
        "sequence_length": length,
        "validation_fraction": fraction,
    }
    try:
        samples = len(TextFile(**arguments).train)
    except ValueError as error:
        with pytest.raises(ConfigError) as caught:
            check_files([request(TEXT, 1, **arguments)])
        assert str(caught.value) == str(error)
        return
    check_files([request(TEXT, samples, **arguments)])
    with pytest.raises(ConfigError, match=rf"has {samples}; allowed: at most {samples}$"):
        check_files([request(TEXT, samples + 1, **arguments)])


CSV = "scalewise.datasets.text_classification"


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
        check_files([request(f"{CSV}.AgNews", path=str(path))])
    assert str(by_plan.value) == str(by_rank.value)
    assert found in str(by_plan.value)


@pytest.mark.parametrize("fraction", [0.0, 0.2, 0.9])
@pytest.mark.parametrize("rows", [1, 2, 7])
def test_the_rows_of_a_short_csv_file_are_counted_as_the_dataset_counts_them(
    tmp_path: Path, rows: int, fraction: float
) -> None:
    path = tmp_path / "reviews.csv"
    path.write_text("review,sentiment\n" + "so,positive\n" * rows)
    samples = len(Imdb(str(path), validation_fraction=fraction).train)
    given: dict[str, Any] = {"path": str(path), "validation_fraction": fraction}
    check_files([request(f"{CSV}.Imdb", samples, **given)])
    with pytest.raises(ConfigError, match=rf"has {samples}; allowed: at most {samples}$"):
        check_files([request(f"{CSV}.Imdb", samples + 1, **given)])


def test_what_the_plan_takes_for_granted_of_an_argument_is_its_default() -> None:
    assert AgNews("x.csv").validation_fraction == 0.2


def test_of_a_long_csv_file_only_the_beginning_is_read(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    path.write_bytes(b"1,a,b\n" * 10 + b"wrong\n")
    assert look_at_csv(path, AG_NEWS, most_rows=10) is None
    with pytest.raises(ValueError, match="row 11: found 1 columns"):
        look_at_csv(path, AG_NEWS)


def test_an_empty_text_file_is_called_empty(tmp_path: Path) -> None:
    path = tmp_path / "empty.csv"
    path.touch()
    with pytest.raises(ConfigError, match=r"^dataset\.path: .*empty\.csv is empty; ") as by_plan:
        check_files([request(TEXT, path=str(path))])
    with pytest.raises(DatasetError) as by_rank:
        _ = TextFile(str(path)).train
    assert str(by_rank.value) == str(by_plan.value)


@pytest.mark.parametrize("first", ['"1",', "class,"])
def test_the_byte_order_mark_of_a_spreadsheet_is_no_part_of_the_first_cell(
    tmp_path: Path, first: str
) -> None:
    path = tmp_path / "excel.csv"
    path.write_text(f'{first}title,description\n"2",b,c\n', encoding="utf-8-sig")
    rows = 1 if first == "class," else 2
    assert look_at_csv(path, AG_NEWS) == rows
    assert len(read_labelled_csv(path, AG_NEWS).texts) == rows
