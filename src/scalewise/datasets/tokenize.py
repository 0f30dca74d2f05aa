"""``scalewise tokenize``: text to a folder of tokens.

Torch-free: whether such a folder is whole is looked at before anything starts.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import shlex
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Literal, get_args

import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from scalewise.config import DatasetError, in_one_line, require
from scalewise.datasets.labelled import hub_package, load_rows
from scalewise.host import plural, tell, usable_cores
from scalewise.records import RecordError, load_json, save_json

Part = Literal["train", "validation"]
PARTS: tuple[Part, ...] = get_args(Part)
INDEX = "index.json"


@dataclass(frozen=True)
class TokenIndex:
    """The file ``index.json`` beside ``train.bin`` and ``validation.bin``.

    These hold the tokens of all documents in a row, little-endian, and nothing else.
    """

    GONE: ClassVar[frozenset[str]] = frozenset({"complete", "stream_state"})
    """Keys of earlier folders, and nobody reads them."""

    source: str
    """Where the text is from: a data set's name on the hub, or files."""
    tokenizer: str
    vocabulary_size: PositiveInt
    end_of_text: NonNegativeInt
    """The token after every document."""
    train_tokens: NonNegativeInt = 0
    validation_tokens: NonNegativeInt = 0
    documents: NonNegativeInt = 0
    empty_documents: NonNegativeInt = 0
    """Passed over: they hold no text."""
    sha256: Mapping[Part, str] = field(default_factory=dict)
    """Of each file: the index tells other tokens, however many."""

    def __post_init__(self) -> None:
        size, end = self.vocabulary_size, self.end_of_text
        require("end_of_text", end, end < size, f"0 to {size - 1}, a token of the vocabulary")

    @property
    def token_bytes(self) -> int:
        """Two where they tell all tokens apart, unsigned; else four."""
        return 2 if self.vocabulary_size <= 2**16 else 4

    def tokens(self, part: Part) -> int:
        return self.train_tokens if part == "train" else self.validation_tokens


def token_file(folder: Path, part: Part) -> Path:
    return folder / f"{part}.bin"


def load_index(folder: Path, corpus: str | None = None) -> TokenIndex:
    """Read the index and compare the sizes of the files with it.

    ``corpus`` is the one that the folder should hold, for the command that makes it. Raises
    :class:`DatasetError` where there is no index, and where a file is missing or too short.
    """
    try:
        index = load_json(folder / INDEX, TokenIndex, Path.read_bytes)  # data may lie behind links
    except RecordError as error:
        raise DatasetError(
            f"dataset.path: {error}; allowed: a folder written by: "
            f"scalewise tokenize {corpus or 'CORPUS'} --out {shlex.quote(str(folder))}"
        ) from error
    for part in PARTS:
        path, needed = token_file(folder, part), index.tokens(part) * index.token_bytes
        found = path.stat().st_size if path.is_file() else 0
        if found < needed:
            raise DatasetError(
                f"{path}: found {found} bytes; allowed: {needed} or more, by its index; delete "
                "the folder and write it anew with `scalewise tokenize`"
            )
    return index


_BATCH = 256
"""Documents that are read and cut together, on all cores."""

_CORPORA = {
    "fineweb_edu": ("HuggingFaceFW/fineweb-edu", "sample-10BT"),
    "openwebtext": ("Skylion007/openwebtext", None),
    "tinystories": ("roneneldan/TinyStories", None),
}
"""The repository on the hub and its subset; their text is in the column ``text``."""

_BUILDERS = {".parquet": "parquet", ".jsonl": "json", ".json": "json", ".txt": "text"}
_UNITS = {"K": 10**3, "M": 10**6, "B": 10**9}


@dataclass(frozen=True)
class Texts:
    """Documents of the hub or of files, streamed: nothing is fetched beyond what is used."""

    source: str
    rows: Any
    """A ``datasets.IterableDataset``."""
    column: str

    def batches(self) -> Iterator[list[str | None]]:
        """Some documents at a time. Raises :class:`DatasetError` where they cannot be read."""
        number = 0
        try:
            for batch in self.rows.iter(_BATCH):
                texts = batch[self.column]
                for found in texts:
                    if not isinstance(found, str | None):
                        raise TypeError(f"found {type(found).__name__} in column {self.column!r}")
                yield texts
                number += len(texts)
        except (OSError, ValueError, RuntimeError, LookupError, TypeError) as error:
            # Torn files, a hub that is gone, or a column of no text.
            raise DatasetError(
                f"{self.source}: cannot be read after {number} documents: "
                f"{in_one_line(error, 200, with_class=True)}; give whole files that hold text"
            ) from error


def open_texts(source: str | Sequence[Path], column: str = "text") -> Texts:
    """A corpus of the hub by its name, or local files of one kind; of ``.txt`` a line a document.

    Raises :class:`DatasetError` for an unknown name, a missing file, and without a hub.
    """
    if isinstance(source, str):
        if source not in _CORPORA:
            allowed = ", ".join(_CORPORA)
            raise DatasetError(f"corpus: found {source!r}; allowed: {allowed}, or --files")
        repository, subset = _CORPORA[source]
        name = f"{repository}/{subset}" if subset else repository
        given: dict[str, Any] = {"path": repository, "name": subset}
        remedy = "give local files with --files, or a hub (HF_ENDPOINT, HF_TOKEN)"
    else:
        kinds = sorted({path.suffix for path in source})
        if len(kinds) != 1 or kinds[0] not in _BUILDERS:
            allowed = ", ".join(_BUILDERS)
            found = ", ".join(kinds)
            raise DatasetError(f"--files: found {found}; allowed: one kind of {allowed}")
        if missing := next((path for path in source if not path.is_file()), None):
            raise DatasetError(f"--files: found no file {missing}")
        paths = sorted(path.resolve() for path in source)
        # Files of the same names elsewhere are other texts; sizes tell, and no path is recorded.
        told = "\n".join(f"{p.name} {p.stat().st_size} {p}" for p in paths)
        name = f"{len(paths)} files" if len(paths) > 1 else paths[0].name
        name += f" ({hashlib.sha256(told.encode()).hexdigest()[:12]})"
        given = {"path": _BUILDERS[kinds[0]], "data_files": [str(path) for path in paths]}
        remedy = "give whole files that hold text"
    rows = load_rows(name, (column,), remedy, split="train", streaming=True, **given)
    return Texts(name, rows, column)


@dataclass(frozen=True)
class Tokenizer:
    """A way to cut text."""

    name: str
    vocabulary_size: int
    end_of_text: int
    """The token put after every document."""
    encode: Callable[[list[str]], Sequence[Sequence[int]]]


def load_tokenizer(name: str) -> Tokenizer:
    """A tokenizer by name: ``bytes`` or ``gpt2``. Raises :class:`DatasetError` for any other."""
    if name == "bytes":
        return Tokenizer("bytes", 257, 256, lambda texts: [text.encode() for text in texts])
    if name != "gpt2":
        raise DatasetError(f"--tokenizer: found {name!r}; allowed: bytes, gpt2")
    tiktoken = hub_package("tiktoken", "--tokenizer: gpt2")
    try:
        gpt2 = tiktoken.get_encoding("gpt2")
    except OSError as error:  # requests' errors are OSErrors too
        raise DatasetError(
            f"--tokenizer: gpt2's vocabulary could not be fetched ({in_one_line(error, 200)}); "
            "allowed: bytes, or a network (TIKTOKEN_CACHE_DIR keeps what was fetched once)"
        ) from error
    encode = functools.partial(gpt2.encode_ordinary_batch, num_threads=len(usable_cores()))
    return Tokenizer("gpt2", gpt2.n_vocab, gpt2.eot_token, encode)


def tokenize(
    texts: Texts, tokenizer: Tokenizer, folder: Path, tokens: int | None = None,
    validation_every: int = 200, tell_every: int = 10_000_000,
) -> Generator[TokenIndex]:  # fmt: skip
    """Write ``texts`` as tokens into ``folder``, which is new or empty.

    Every ``validation_every``-th document is held out. Yields how far it is after every
    ``tell_every`` training tokens, and at the end the index, which is saved. ``tokens`` is how many
    training tokens are enough; None takes all. Files that an error leaves half written are removed.
    Raises :class:`DatasetError` for a folder that holds something, and for texts without text.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if others := sorted(path.name for path in folder.iterdir()):
            raise DatasetError(
                f"--out: found {others[0]!r} in {folder}; allowed: a new or empty folder"
            )
    except OSError as error:
        raise DatasetError(f"--out: {folder} cannot be made: {error.strerror}") from error
    index = TokenIndex(
        texts.source, tokenizer.name, tokenizer.vocabulary_size, tokenizer.end_of_text
    )
    paths, told = {part: token_file(folder, part) for part in PARTS}, 0
    try:
        with contextlib.ExitStack() as stack:
            files = {part: stack.enter_context(path.open("wb")) for part, path in paths.items()}
            for batch in texts.batches():
                index = _append(batch, tokenizer, files, index, validation_every)
                if tokens is not None and index.train_tokens >= tokens:
                    break
                if index.train_tokens >= told + tell_every:
                    told = index.train_tokens
                    yield index
        if not index.documents:
            raise DatasetError(f"{texts.source}: found no text; allowed: at least one document")
        index = replace(index, sha256={part: _sum(path) for part, path in paths.items()})
        save_json(folder / INDEX, index)
    except BaseException:
        for path in paths.values():
            path.unlink(missing_ok=True)
        raise
    yield index


def _append(
    batch: Sequence[str | None],
    tokenizer: Tokenizer,
    files: Mapping[Part, BinaryIO],
    index: TokenIndex,
    validation_every: int,
) -> TokenIndex:
    """Write some documents; returns what is written by now, ``index`` being what was before."""
    documents = tokenizer.encode([text for text in batch if text])
    for number, document in enumerate(documents, start=index.documents + 1):
        part: Part = "train" if number % validation_every else "validation"
        tokens = np.array([*document, tokenizer.end_of_text], f"<u{index.token_bytes}")
        files[part].write(tokens.tobytes())
    return replace(
        index,
        train_tokens=files["train"].tell() // index.token_bytes,
        validation_tokens=files["validation"].tell() // index.token_bytes,
        documents=index.documents + len(documents),
        empty_documents=index.empty_documents + len(batch) - len(documents),
    )


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def token_count(text: str) -> int:
    """``100M`` to 100,000,000. Raises ValueError."""
    unit = _UNITS.get(text[-1:].upper(), 1)
    count = float(text[:-1] if unit > 1 else text) * unit
    if not math.isfinite(count) or count != int(count) or count < 1:
        raise ValueError(text)
    return int(count)


def tokenize_text(
    source: str | list[Path], folder: Path, *, column: str, tokenizer_name: str, tokens: int | None,
    validation_every: int,
) -> None:  # fmt: skip
    """Tokenize a corpus of the hub, or files, and say now and then how far it is.

    Raises :class:`DatasetError` for wrong input, and OSError, for a full disk among others.
    """
    tokenizer = load_tokenizer(tokenizer_name)
    texts = open_texts(source, column)
    started = time.monotonic()
    for index in tokenize(texts, tokenizer, folder, tokens, validation_every):
        tell(
            f"{index.train_tokens:,} training and {index.validation_tokens:,} validation tokens "
            f"of {index.documents:,} {plural(index.documents, 'document')}, "
            f"{time.monotonic() - started:.0f} s"
        )
    if index.empty_documents:
        tell(f"passed over, as they hold no text: {index.empty_documents:,}")
    tell(
        "train on it: python train.py model=gpt2_tiny model.vocabulary_size="
        f"{index.vocabulary_size} dataset=tokens dataset.path={folder}"
    )
