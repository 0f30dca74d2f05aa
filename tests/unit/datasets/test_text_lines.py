"""Bad documents, damaged indices and two writers at once: what `scalewise tokenize` says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scalewise.cli import main
from scalewise.config import DatasetError
from scalewise.datasets import load_index
from scalewise.datasets.corpora import LineStream, json_line, open_files, plain_line
from scalewise.datasets.token_shards import TokenShards
from scalewise.datasets.tokenize import load_tokenizer, tokenize

BYTES = load_tokenizer("bytes")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (b'{"text": "torn', "found no JSON (Unterminated string starting at"),
        (b'{"text": "caf\xe9"}', "found byte 0xe9 in column 14; allowed: UTF-8"),
        (b'{"text": 5}', "found int in column 'text'; allowed: text"),
        (b'{"other": "a", "b": 1}', "found no column 'text'; .*the document has other, b"),
        (b"[1]", "found a JSON list; allowed: one JSON object"),
        (b'{"text": "\\ud83d"}', "found half a surrogate pair in 'text'; allowed: Unicode"),
        (b"[" * 100_000, "found no JSON ("),
    ],
)
def test_a_bad_line_is_told_by_file_and_number_or_passed_over(
    tmp_path: Path, bad: bytes, message: str
) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "one"}\n')
    (tmp_path / "b.jsonl").write_bytes(b'{"text": "two"}\n\n' + bad + b'\n{"text": "three"}\n')
    files = [tmp_path / "b.jsonl", tmp_path / "a.jsonl"]
    pattern = message.replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(DatasetError, match=f"b.jsonl:3: {pattern}.*--skip-bad-documents"):
        list(open_files(files))
    skipping = open_files(files, skip_bad=True)
    assert list(skipping) == ["one", "two", "three"]
    assert skipping.skipped.count == 1
    assert "b.jsonl:3: " in str(skipping.skipped.first)


def test_a_stream_goes_on_at_every_line(tmp_path: Path) -> None:
    files = [tmp_path / "a.txt", tmp_path / "b.txt", tmp_path / "c.txt"]
    for file, text in zip(files, ("\ufeffone\ntwo\n", "", "three\r\n\nfour"), strict=True):
        file.write_bytes(text.encode())
    lines = ["one", "two", "three", "", "four"]
    for count in range(len(lines) + 1):
        first = LineStream(files, plain_line, "mine")
        rest = LineStream(files, plain_line, "mine")
        begun = iter(first)
        assert [next(begun) for _ in range(count)] == lines[:count]
        rest.resume(first.state())
        assert list(rest) == lines[count:]
    rest = LineStream(files, plain_line, "mine")
    list(rest)
    rest.resume(rest.state())
    assert list(rest) == []


@pytest.mark.parametrize("state", [{}, {"file": 0, "line": "x", "byte": 0}])
def test_a_place_that_is_none_is_refused(tmp_path: Path, state: dict[str, Any]) -> None:
    stream = LineStream([tmp_path / "a.jsonl"], json_line("text"), "mine")
    with pytest.raises(DatasetError, match="the place at which to go on cannot be read"):
        stream.resume(state)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("".join(f"document {number}\n" for number in range(60)))
    return path


def test_passed_over_documents_are_counted_across_runs(texts: Path, tmp_path: Path) -> None:
    lines = texts.read_bytes().splitlines(keepends=True)
    for number in (3, 40):
        lines[number] = b"\xff\n"
    texts.write_bytes(b"".join(lines))
    folder = tmp_path / "shards"
    begun = tokenize(open_files([texts], skip_bad=True), BYTES, folder, None, 100, 10)
    assert next(begun).skipped_documents == 1
    begun.close()
    *_, index = tokenize(open_files([texts], skip_bad=True), BYTES, folder, None, 100, 10)
    assert (index.skipped_documents, index.documents) == (2, 58)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\n" * 3, r"found no document but 3 bad ones, the first: .*:1: "),
        (b"", r"^texts.txt .*: found no document; allowed: at least one"),
    ],
)
def test_no_document_at_all(texts: Path, tmp_path: Path, content: bytes, message: str) -> None:
    texts.write_bytes(content)
    with pytest.raises(DatasetError, match=message):
        list(tokenize(open_files([texts], skip_bad=True), BYTES, tmp_path / "shards"))


def test_two_writers_at_once(texts: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    first = tokenize(open_files([texts]), BYTES, folder, None, 100, 10)
    next(first)
    with pytest.raises(DatasetError, match=r"^--out: found another scalewise tokenize at work in "):
        next(tokenize(open_files([texts]), BYTES, folder, None, 100, 10))
    assert sum(1 for _ in first)  # whoever came second disturbed nothing
    assert load_index(folder).complete


def test_the_command_ends_with_one_line(
    texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts.write_bytes(b"good\n\xff\n")
    given = ["--files", str(texts), "--tokenizer", "bytes", "--out", str(tmp_path / "shards")]
    assert main(["tokenize", *given]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert main(["tokenize", *given, "--skip-bad-documents"]) == 0
    said = capsys.readouterr().out
    assert "bad documents passed over: 1, the first of them " in said
    assert "of 1 document in 1 shard, " in said and f"dataset.path={tmp_path / 'shards'}" in said
    assert main(["tokenize", *given[:-1], str(texts)]) == 2
    assert f"--out: {texts} cannot be made: File exists" in capsys.readouterr().err


def _change(**changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda index: index.update(changes)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda i: i.pop("shards") and i.pop("tokenizer"), "tokenizer: missing"),
        (_change(documents="60"), "documents: found '60'; allowed: an integer"),
        (_change(end_of_text=257), "end_of_text: found 257; allowed: 0 to 256"),
        (lambda i: i["shards"][0].update(tokens=-5), r"shards\[0\].tokens: found -5"),
        (lambda i: i["shards"][0].update(file="../a.bin"), r"shards\[0\].file: found '../a.bin'"),
        (lambda i: i["shards"].append(i["shards"][0]), "allowed: every file once"),
        (lambda i: i["shards"][0].update(tokens=10_000), r"\.bin: found \d+ bytes; allowed: 20000"),
        (_change(version=2), "found version 2; allowed: 1"),
        (_change(colour="red"), "colour: unknown key"),
    ],
)
def test_a_damaged_index_is_one_line(
    texts: Path, tmp_path: Path, damage: Callable[[dict[str, Any]], object], message: str
) -> None:
    folder = tmp_path / "shards"
    list(tokenize(open_files([texts]), BYTES, folder, None, 100, 10))
    path = folder / "index.json"
    index = json.loads(path.read_text())
    damage(index)
    path.write_text(json.dumps(index))
    with pytest.raises(DatasetError, match=message) as raised:
        _ = TokenShards(str(folder), sequence_length=4).train
    assert "\n" not in str(raised.value)


def test_a_folder_without_a_shard_says_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "index.json").write_text(
        json.dumps({"source": "s", "tokenizer": "t", "vocabulary_size": 257, "end_of_text": 256})
    )
    with pytest.raises(DatasetError, match=r"^dataset\.path: found no shard yet in .*run it again"):
        _ = TokenShards(str(tmp_path)).train


@pytest.mark.parametrize("text", ["", "[]", '{"shards"'])
def test_no_index_at_all_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "index.json").write_text(text)
    with pytest.raises(DatasetError, match=r"index\.json: .*write the folder anew"):
        load_index(tmp_path)
