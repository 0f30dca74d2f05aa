"""Text to tokens, and labelled texts, with the real libraries, and trained on."""

import hashlib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from scalewise.cli import main
from scalewise.config import DatasetError
from scalewise.datasets import load_index, token_count
from scalewise.datasets.text_classification import AgNews
from scalewise.datasets.text_file import TokenFolder
from scalewise.datasets.tokenize import (
    Part,
    Texts,
    TokenIndex,
    Tokenizer,
    load_tokenizer,
    open_texts,
    tokenize,
)

datasets = pytest.importorskip("datasets")

TEXTS = [f"document {number} " + "word " * (number % 7) for number in range(1000)]
"""Several batches."""
BYTES = load_tokenizer("bytes")


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "tokens"


def written(folder: Path, kind: str) -> Path:
    """The texts as a file of this kind."""
    path = folder / f"texts.{kind}"
    if kind == "parquet":
        rows = datasets.Dataset.from_dict({"text": TEXTS, "id": [1] * len(TEXTS)})
        rows.to_parquet(path, batch_size=300)
    else:
        lines = [json.dumps({"text": text, "id": 1}) if kind == "jsonl" else text for text in TEXTS]
        path.write_text("".join(f"{line}\n" for line in lines))
    return path


def run(texts: Texts, folder: Path, tokens: int | None = None) -> TokenIndex:
    *_, index = tokenize(texts, BYTES, folder, tokens, validation_every=10, tell_every=200)
    return index


def stored(folder: Path, part: Part) -> list[int]:
    return list(np.fromfile(folder / f"{part}.bin", "<u2")[: load_index(folder).tokens(part)])


def expected(part: Part) -> list[int]:
    held_out = range(9, len(TEXTS), 10)
    mine = [t for i, t in enumerate(TEXTS) if (i in held_out) == (part == "validation")]
    return [token for text in mine for token in (*text.encode(), 256)]


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "txt"])
def test_every_document_is_in_one_of_two_files(kind: str, folder: Path, tmp_path: Path) -> None:
    texts = open_texts([written(tmp_path, kind)])
    index = run(texts, folder)
    assert (load_index(folder), stored(folder, "train")) == (index, expected("train"))
    assert (stored(folder, "validation"), index.documents) == (expected("validation"), len(TEXTS))
    tokens = np.array(expected("train"), dtype="<u2").tobytes()
    assert index.sha256["train"] == hashlib.sha256(tokens).hexdigest()
    with pytest.raises(DatasetError, match=r"^--out: found 'index\.json' in "):
        run(texts, folder)


def test_enough_is_enough_and_what_was_ended_is_not_kept(tmp_path: Path, folder: Path) -> None:
    texts = open_texts([written(tmp_path, "jsonl")])
    begun = tokenize(texts, BYTES, folder, None, 10, 200)
    next(begun)
    begun.close()
    assert not list(folder.iterdir())
    told = tokenize(texts, BYTES, tmp_path / "told", None, 10, tell_every=6570)  # as the first do
    assert [one.train_tokens for one in told] == [6570, 13250, 19959, 25981]
    few = run(texts, folder, tokens=500)
    assert 500 <= few.train_tokens < len(expected("train")) / 3
    assert stored(folder, "train") == expected("train")[: few.train_tokens]
    path, earlier = folder / "index.json", {"complete": True, "stream_state": None}
    path.write_text(json.dumps(json.loads(path.read_text()) | earlier))
    assert load_index(folder) == few, "also of an earlier version"


def test_a_folder_of_tokens_is_training_data(tmp_path: Path, folder: Path) -> None:
    run(open_texts([written(tmp_path, "jsonl")]), folder)
    data = TokenFolder(str(folder), sequence_length=16, max_validation_samples=3)
    x, target = data.train.__getitems__([0, 2])
    assert x.tolist() == [expected("train")[:16], expected("train")[32:48]]
    assert target[0].tolist() == expected("train")[1:17]
    assert data.validation is not None
    assert len(data.validation) == 3
    assert data.describe() == {"sequence_length": 16, "vocabulary_size": 257}
    assert len(data.train) == (len(expected("train")) - 1) // 16
    assert TokenFolder(str(folder), sequence_length=len(expected("validation"))).validation is None


@pytest.mark.parametrize("size", [2**16, 2**16 + 1])
def test_the_largest_token_comes_back_as_it_was(size: int, tmp_path: Path, folder: Path) -> None:
    largest = Tokenizer("mine", size, 0, lambda texts: [[size - 1]] * len(texts))
    list(tokenize(open_texts([written(tmp_path, "txt")]), largest, folder))
    x, _ = TokenFolder(str(folder), sequence_length=2).train[0]
    assert x.tolist() == [size - 1, 0]


def test_documents_without_text_are_counted(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "gaps.jsonl"
    rows = '{"text": "a"}\n{"text": null}\n{"text": ""}\n{"other": 1}\n{"text": "b"}\n'
    path.write_text(rows * 200)
    index = run(open_texts([path]), folder)
    assert (index.documents, index.empty_documents, index.train_tokens) == (400, 600, 720)
    assert stored(folder, "train")[:4] == [97, 256, 98, 256]


class TestWrongInput:
    @pytest.mark.parametrize(
        ("name", "content", "found"),
        [("a.txt", b"good\n\xff\n", "'utf-8' codec can't decode byte 0xff"),
         ("a.jsonl", b'{"text": "torn', "JSON parse error"),
         ("a.jsonl", b'{"text": "caf\xe9"}', "'utf-8' codec can't decode byte 0xe9"),
         ("a.jsonl", b'{"text": 5}', "found int in column 'text'"),
         ("a.jsonl", b'{"body": "a"}', "found no column 'text'; .* found body"),
         ("a.jsonl", b"", "give whole files that hold text"),
         ("a.jsonl", b'{"text": null}', "found no text; allowed: at least one document")],
    )  # fmt: skip
    def test_what_is_no_text(
        self, name: str, content: bytes, found: str, folder: Path, tmp_path: Path
    ) -> None:
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(DatasetError, match=rf"^{re.escape(name)} \(.*{found}") as raised:
            run(open_texts([path]), folder)
        assert "\n" not in str(raised.value)

    def test_without_a_hub_or_its_packages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        unreachable = Mock(side_effect=ConnectionError("no route\nto the hub"))
        monkeypatch.setattr(datasets, "load_dataset", unreachable)
        pattern = r"^HuggingFaceFW/fineweb-edu/sample-10BT .*: no route to the hub; .*--files"
        with pytest.raises(DatasetError, match=pattern):
            open_texts("fineweb_edu")
        monkeypatch.setitem(sys.modules, "tiktoken", SimpleNamespace(get_encoding=unreachable))
        with pytest.raises(DatasetError, match=r"gpt2's vocabulary .*no route to .*TIKTOKEN_CACHE"):
            load_tokenizer("gpt2")
        for package in ("datasets", "tiktoken"):
            monkeypatch.setitem(sys.modules, package, None)
        for call in (lambda: open_texts("fineweb_edu"), lambda: load_tokenizer("gpt2")):
            with pytest.raises(DatasetError, match=r"pip install 'scalewise\[hub\]'"):
                call()

    def test_one_line_names_it(self, tmp_path: Path) -> None:
        jsonl, txt = (written(tmp_path, kind) for kind in ("jsonl", "txt"))
        calls: list[tuple[Callable[[], Any], str]] = [
            (lambda: TokenFolder(None, corpus="ts"), r"^path: found null; .*scalewise tokenize ts"),
            (lambda: TokenFolder("none").train, r"^dataset.path: none/index.json: no such record"),
            (lambda: run(open_texts([jsonl]), tmp_path), r"^--out: found 'cache' in "),
            (lambda: open_texts([tmp_path / "none.jsonl"]), r"^--files: found no file "),
            (lambda: open_texts([jsonl, txt]), r"^--files: found .jsonl, .txt; allowed: o"),
            (lambda: open_texts("pile"), r"^corpus: found 'pile'; allowed: fineweb_edu, "),
            (lambda: load_tokenizer("bert"), r"^--tokenizer: found 'bert'; allowed: bytes, gpt2"),
        ]
        (tmp_path / "cache").mkdir(exist_ok=True)
        for call, message in calls:
            with pytest.raises(ValueError, match=message):
                call()

    @pytest.mark.parametrize(
        ("changes", "message"),
        [({"documents": "60"}, "documents: found '60'; allowed: an integer"),
         ({"end_of_text": 257}, "end_of_text: found 257; allowed: 0 to 256"),
         ({"train_tokens": 10**6}, r"train\.bin: found \d+ bytes; allowed: 2000000"),
         ({"train_tokens": 0}, "found no token to train on"),
         ({"train_tokens": 4}, "found 4; allowed: below 4"),
         ({"schema_version": 9}, "schema version 9"), ({"colour": "red"}, "colour: unknown key")],
    )  # fmt: skip
    def test_a_damaged_index(
        self, tmp_path: Path, folder: Path, changes: dict[str, Any], message: str
    ) -> None:
        run(open_texts([written(tmp_path, "txt")]), folder)
        path = folder / "index.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
        with pytest.raises(DatasetError, match=message) as raised:
            _ = TokenFolder(str(folder), sequence_length=4).train
        assert "\n" not in str(raised.value)


def test_the_command(tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    txt = written(tmp_path, "txt")
    given = ["--files", str(txt), "--tokenizer", "bytes", "--out"]
    assert main(["tokenize", *given, str(txt)]) == 2
    assert f"--out: {txt} cannot be made: File exists" in capsys.readouterr().err
    assert main(["tokenize", *given, str(folder)]) == 0
    said = capsys.readouterr().out
    assert "of 1,000 documents, " in said and f"dataset=tokens dataset.path={folder}" in said


def test_counts_have_units() -> None:
    assert [token_count(t) for t in ("7", "1.5K", "100M", "2b")] == [7, 1500, 10**8, 2 * 10**9]
    for text in ("", "x", "0", "1.5", "-3M", "inf", "1e400", "nan"):
        with pytest.raises(ValueError):
            token_count(text)


# Labelled texts from a folder in the hub's layout.
def hub_in(path: Path, **columns: list[object]) -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.mkdir()
    pq.write_table(pa.table(columns), path / "train-00000-of-00001.parquet")
    return str(path)


def texts(count: int) -> list[object]:
    return [f"news number {n} of the day" for n in range(count)]


def test_the_hub_gives_what_a_csv_of_the_same_texts_gives(tmp_path: Path) -> None:
    labels: list[object] = [n % 4 for n in range(40)]
    hub = AgNews(repository=hub_in(tmp_path / "hub", text=texts(40), label=labels))
    rows = "".join(f'"{n % 4 + 1}","{text}",""\n' for n, text in enumerate(texts(40)))
    (tmp_path / "ag.csv").write_text(rows)
    csv = AgNews(str(tmp_path / "ag.csv"))
    for ours, theirs in zip(
        hub.train.__getitems__(range(32)), csv.train.__getitems__(range(32)), strict=True
    ):
        assert ours.tolist() == theirs.tolist()
    assert hub.describe()["classes"] == 4


@pytest.mark.parametrize(
    ("columns", "message"),
    [({"body": texts(4), "label": [0] * 4}, "found no column 'text'; .* found body, label"),
     ({"text": texts(4), "label": [0, 1, 2, 7]}, "row 4: found class 7; allowed: a text and a"),
     (None, "^dataset.path: found null, and .* cannot be read")],
)  # fmt: skip
def test_what_is_no_labelled_text(
    tmp_path: Path, columns: dict[str, list[object]] | None, message: str
) -> None:
    hub = str(tmp_path / "hub") if columns is None else hub_in(tmp_path / "hub", **columns)
    with pytest.raises(DatasetError, match=message):
        _ = AgNews(repository=hub).train
