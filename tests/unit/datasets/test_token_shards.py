"""Text to shards with the real libraries, stopped and resumed, and trained on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scalewise.config import DatasetError
from scalewise.datasets import load_index
from scalewise.datasets.contract import TrainingData
from scalewise.datasets.corpora import TextStream, open_corpus, open_files
from scalewise.datasets.token_index import check_sums
from scalewise.datasets.token_shards import ShardWindows, TokenShards
from scalewise.datasets.tokenize import load_tokenizer, token_count, tokenize

pytest.importorskip("datasets")

TEXTS = [f"document {number} " + "word " * (number % 7) for number in range(60)]
BYTES = load_tokenizer("bytes")


@pytest.fixture
def jsonl(tmp_path: Path) -> Path:
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return path


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "texts.parquet"
    pq.write_table(pa.table({"text": TEXTS, "score": list(range(60))}), path, row_group_size=16)
    return path


def run(stream: TextStream, folder: Path, **given: Any) -> None:
    given = {"shard_tokens": 200, "validation_every": 10, **given}
    for _ in tokenize(stream, BYTES, folder, **given):
        pass


def stored(folder: Path, part: str) -> list[int]:
    shards = [s for s in load_index(folder).shards if s.part == part]
    return [int(t) for s in shards for t in np.fromfile(folder / s.file, dtype="<u2")]


def expected(part: str) -> list[int]:
    held_out = range(9, 60, 10)
    mine = [t for i, t in enumerate(TEXTS) if (i in held_out) == (part == "validation")]
    return [token for text in mine for token in (*text.encode(), 256)]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_stopped_and_resumed_is_as_never_stopped(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    source = request.getfixturevalue(kind)
    folder = tmp_path / "shards"
    for _ in range(3):
        shards = tokenize(open_files([source]), BYTES, folder, None, 200, 10)
        next(shards)
        shards.close()  # what was read after the last shard is lost, as when it is killed
        assert not load_index(folder).complete
    (folder / "train_000003.bin").write_bytes(b"torn")
    run(open_files([source]), folder)
    assert stored(folder, "train") == expected("train")
    assert stored(folder, "validation") == expected("validation")
    index = load_index(folder)
    assert (index.complete, index.documents) == (True, 60)
    check_sums(folder, index)


def test_enough_is_enough_and_more_can_be_had(jsonl: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    run(open_files([jsonl]), folder, tokens=500)
    some = stored(folder, "train")
    assert 500 <= len(some) < 600
    run(open_files([jsonl]), folder, tokens=500)
    assert stored(folder, "train") == some
    run(open_files([jsonl]), folder, tokens=1000)
    more = stored(folder, "train")
    assert 1000 <= len(more) < 1100
    assert more == expected("train")[: len(more)]
    assert not load_index(folder).complete
    run(open_files([jsonl]), folder)
    assert stored(folder, "train") == expected("train")
    assert load_index(folder).complete


def test_windows_run_through_all_files_and_never_across(tmp_path: Path) -> None:
    files = []
    for name, begin, end in (("a", 0, 10), ("b", 100, 104), ("c", 200, 209)):
        path = tmp_path / name
        np.arange(begin, end, dtype="<u2").tofile(path)
        files.append(path)
    windows = ShardWindows(files, 4)
    assert len(windows) == 4
    x, target = windows.__getitems__(range(4))
    assert x.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [200, 201, 202, 203], [204, 205, 206, 207]]
    assert torch.equal(target, x + 1)
    assert x.dtype == target.dtype == torch.int64
    assert ShardWindows(files, 4, every=3)[1][0].tolist() == [204, 205, 206, 207]


def test_a_folder_of_shards_is_training_data(jsonl: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    run(open_files([jsonl]), folder)
    data = TokenShards(str(folder), sequence_length=16, max_validation_samples=3, verify="sums")
    assert isinstance(data, TrainingData)
    assert data.train[0][0].tolist() == expected("train")[:16]
    assert data.validation is not None
    assert len(data.validation) == 3
    described = data.describe()
    assert described["vocabulary_size"] == 257
    assert described["train_tokens"] == len(expected("train"))
    assert described["synthetic"] is False


class TestWrongInput:
    def test_other_files_of_the_same_name(self, jsonl: Path, tmp_path: Path) -> None:
        folder = tmp_path / "shards"
        run(open_files([jsonl]), folder, tokens=500)
        (tmp_path / "else").mkdir()
        other = tmp_path / "else" / jsonl.name
        other.write_text(jsonl.read_text())
        with pytest.raises(DatasetError, match=r"holds shards with source 'texts.jsonl \("):
            run(open_files([other]), folder)

    def test_a_torn_or_changed_shard(self, jsonl: Path, tmp_path: Path) -> None:
        folder = tmp_path / "shards"
        run(open_files([jsonl]), folder)
        shard = folder / "train_000001.bin"
        data = bytearray(shard.read_bytes())
        data[0] ^= 1
        shard.write_bytes(data)
        assert len(TokenShards(str(folder), sequence_length=16).train)
        with pytest.raises(DatasetError, match=r"train_000001.bin: found sha256 "):
            _ = TokenShards(str(folder), sequence_length=16, verify="sums").train
        shard.write_bytes(data[:-1])
        with pytest.raises(DatasetError, match=r"train_000001.bin: found \d+ bytes; allowed: "):
            _ = TokenShards(str(folder), sequence_length=16).train

    def test_another_tokenizer_than_the_folder_was_begun_with(
        self, jsonl: Path, tmp_path: Path
    ) -> None:
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers

        words = Tokenizer(models.WordLevel(unk_token="<unk>"))
        words.pre_tokenizer = pre_tokenizers.Whitespace()
        words.train_from_iterator(
            TEXTS, trainers.WordLevelTrainer(special_tokens=["<unk>", "<|endoftext|>"])
        )
        path = tmp_path / "tokenizer.json"
        words.save(str(path))
        loaded = load_tokenizer(str(path))
        assert loaded.end_of_text == 1
        assert len(loaded.encode("document 3 word")) == 3
        folder = tmp_path / "shards"
        run(open_files([jsonl]), folder)
        with pytest.raises(DatasetError, match=r"holds shards with tokenizer 'bytes'; allowed: 't"):
            next(tokenize(open_files([jsonl]), loaded, folder))

    def test_one_line_names_it(self, jsonl: Path, parquet: Path, tmp_path: Path) -> None:
        calls: list[tuple[Callable[[], Any], str]] = [
            (lambda: TokenShards(None, corpus="ts"), r"^path: found null; .*scalewise tokenize ts"),
            (lambda: TokenShards("none").train, r"^dataset.path: .* cannot be read: No such file"),
            (lambda: run(open_files([jsonl]), tmp_path), r"^--out: found 'texts.jsonl' in "),
            (lambda: open_files([tmp_path / "none.jsonl"]), r"^--files: found no file "),
            (lambda: open_files([jsonl, parquet]), r"^--files: found .jsonl, .parquet; allowed: o"),
            (
                lambda: list(open_files([jsonl], "body")),
                r"jsonl:1: found no column 'body'; ",
            ),
            (lambda: open_corpus("pile"), r"^corpus: found 'pile'; allowed: fineweb_edu, "),
            (lambda: load_tokenizer("bert"), r"^--tokenizer: found 'bert'; allowed: bytes, gpt2"),
        ]
        for call, message in calls:
            with pytest.raises(ValueError, match=message):
                call()


def test_counts_have_units() -> None:
    assert [token_count(t) for t in ("7", "1.5K", "100M", "2b")] == [7, 1500, 10**8, 2 * 10**9]
    for text in ("", "x", "0", "1.5", "-3M", "inf", "1e400", "nan"):
        with pytest.raises(ValueError):
            token_count(text)
