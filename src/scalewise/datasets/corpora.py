"""Texts of the Hugging Face hub or of local files, streamed document by document."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from scalewise.config import DatasetError, in_one_line

_BOM = b"\xef\xbb\xbf"
Parse = Callable[[bytes], str | None]
"""The document of a line; None for a line that holds none. Raises ValueError."""


class Skipped:
    """Documents that could not be read, if the user said that they may be passed over."""

    def __init__(self, allowed: bool) -> None:
        self.allowed = allowed
        self.count = 0
        self.first: str | None = None

    def read(self, where: str, parse: Callable[[], str | None]) -> str | None:
        """What ``parse`` returns; None for a document to pass over, which is counted.

        Raises :class:`DatasetError` with ``where`` for one that may not be passed over.
        """
        try:
            return parse()
        except ValueError as error:
            problem = f"{where}: {error}"
            if not self.allowed:
                raise DatasetError(
                    f"{problem}; mend it and give a new --out, or pass over such documents with "
                    "--skip-bad-documents"
                ) from None
            self.count += 1
            self.first = self.first or problem
            return None


class LineStream:
    """Documents of text files, one after the other, from where it was told to go on.

    Args:
        files: in their order.
        parse: of one line, without its end.
        source: what the documents are, for the records.
        skip_bad: pass over what is no document instead of raising.
    """

    def __init__(
        self, files: Sequence[Path], parse: Parse, source: str, skip_bad: bool = False
    ) -> None:
        self._files = tuple(files)
        self._parse = parse
        self._file = self._line = self._byte = 0
        self.source = source
        self.skipped = Skipped(skip_bad)

    def state(self) -> dict[str, Any]:
        """Where it stands, after the last line: what :meth:`resume` takes."""
        return {"file": self._file, "line": self._line, "byte": self._byte}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Go on after the line at which ``state`` was taken. Raises DatasetError."""
        try:
            self._file, self._line, self._byte = (
                int(state[key]) for key in ("file", "line", "byte")
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DatasetError(
                f"--out: the place at which to go on cannot be read from its index ({error}); "
                "give a new folder"
            ) from None

    def __iter__(self) -> Iterator[str]:
        while self._file < len(self._files):
            path = self._files[self._file]
            try:
                with path.open("rb") as file:
                    file.seek(self._byte)
                    for line in file:
                        self._line += 1
                        self._byte += len(line)
                        text = self._read(path, line)
                        if text is not None:
                            yield text
            except OSError as error:
                raise DatasetError(f"{path}: cannot be read: {error.strerror}") from error
            if self._file + 1 == len(self._files):
                return  # its state stays at the end: more was never there
            self._file, self._line, self._byte = self._file + 1, 0, 0

    def _read(self, path: Path, line: bytes) -> str | None:
        if self._line == 1:
            line = line.removeprefix(_BOM)
        parse = partial(self._parse, line.rstrip(b"\r\n"))
        return self.skipped.read(f"{path}:{self._line}", parse)


def plain_line(line: bytes) -> str:
    """A line of text as it is. Raises ValueError for other encodings than UTF-8."""
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"found byte 0x{line[error.start]:02x} in column {error.start + 1}; allowed: UTF-8"
        ) from None


def json_line(column: str) -> Parse:
    """A line of JSON whose key ``column`` holds the text. Blank lines hold nothing."""

    def parse(line: bytes) -> str | None:
        text = plain_line(line)
        if not text.strip():
            return None
        try:
            row = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"found no JSON ({error}); allowed: one JSON object") from None
        if not isinstance(row, dict):
            raise ValueError(f"found a JSON {type(row).__name__}; allowed: one JSON object")
        return checked_text(row, column)

    return parse


def checked_text(row: Mapping[str, Any], column: str) -> str:
    """The text of a document. Raises ValueError where it has none that can be written as UTF-8."""
    text = row.get(column)
    if not isinstance(text, str):
        found = "no column" if column not in row else f"{type(text).__name__} in column"
        raise ValueError(
            f"found {found} {column!r}; allowed: text, and the document has "
            f"{', '.join(map(str, row)) or 'no column at all'} (--column)"
        )
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"found half a surrogate pair in {column!r}; allowed: Unicode") from None
    return text


@dataclass(frozen=True)
class Corpus:
    """A data set of the hub."""

    repository: str
    subset: str | None
    column: str
    """The column that holds the text."""


CORPORA = {
    "fineweb_edu": Corpus("HuggingFaceFW/fineweb-edu", "sample-10BT", "text"),
    "openwebtext": Corpus("Skylion007/openwebtext", None, "text"),
    "tinystories": Corpus("roneneldan/TinyStories", None, "text"),
}
_KINDS = (".parquet", ".jsonl", ".json", ".txt")
_LOADERS = {".parquet": "parquet", ".json": "json"}


class HubStream:
    """What the library ``datasets`` streams: the hub, and files that are no lines.

    Args:
        stream: a streaming ``datasets.IterableDataset``.
        column: the column that holds the text.
        source: what the documents are, for the records.
        skip_bad: pass over documents without text instead of raising.
    """

    def __init__(self, stream: Any, column: str, source: str, skip_bad: bool = False) -> None:
        self._stream = stream
        self._column = column
        self.source = source
        self.skipped = Skipped(skip_bad)

    def state(self) -> dict[str, Any]:
        state = self._stream.state_dict()
        assert isinstance(state, dict)
        return state

    def resume(self, state: Any) -> None:
        self._stream.load_state_dict(state)

    def __iter__(self) -> Iterator[str]:
        number = 0
        rows = iter(self._stream)
        while True:
            try:
                row = next(rows, None)
            except (OSError, ValueError, RuntimeError, LookupError, TypeError) as error:
                # Torn files, a hub that is gone, or a place to go on that is none.
                raise DatasetError(
                    f"{self.source}: cannot be read after {number} documents of this run: "
                    f"{in_one_line(error, 200, with_class=True)}"
                ) from error
            if row is None:
                return
            number += 1
            where = f"{self.source}, document {number}"
            text = self.skipped.read(where, partial(checked_text, row, self._column))
            if text is not None:
                yield text


TextStream = LineStream | HubStream
"""Documents, one after the other, from where it was told to go on."""


def open_corpus(name: str, skip_bad: bool = False) -> TextStream:
    """A corpus of the hub. Raises :class:`DatasetError` for an unknown name and without a hub."""
    if name not in CORPORA:
        raise DatasetError(f"corpus: found {name!r}; allowed: {', '.join(CORPORA)}, or --files")
    corpus = CORPORA[name]
    return _open(
        f"{corpus.repository}{'/' + corpus.subset if corpus.subset else ''}",
        corpus.column,
        skip_bad,
        "a hub must be reachable (HF_ENDPOINT, HF_TOKEN), or give local files with --files",
        path=corpus.repository,
        name=corpus.subset,
    )


def open_files(files: Sequence[Path], column: str = "text", skip_bad: bool = False) -> TextStream:
    """Local ``.parquet``, ``.jsonl``, ``.json`` or ``.txt`` files, a line a document in the last.

    All of one kind. Raises :class:`DatasetError` for none, a missing one, or a mixture.
    """
    if not files:
        raise DatasetError(f"--files: found none; allowed: {', '.join(_KINDS)} files")
    missing = [str(file) for file in files if not file.is_file()]
    if missing:
        raise DatasetError(f"--files: found no file {missing[0]}")
    kinds = {file.suffix for file in files}
    if len(kinds) != 1 or not kinds <= set(_KINDS):
        found = ", ".join(sorted({file.suffix or file.name for file in files}))
        raise DatasetError(f"--files: found {found}; allowed: one of {', '.join(_KINDS)}")
    ordered = sorted(file.resolve() for file in files)
    source = f"{len(files)} files" if len(files) > 1 else files[0].name
    # Files of the same names elsewhere are other texts; their sizes tell, and no path is recorded.
    told = "\n".join(f"{p.name} {p.stat().st_size} {p}" for p in ordered)
    source += f" ({hashlib.sha256(told.encode()).hexdigest()[:12]})"
    kind = kinds.pop()
    if kind in _LOADERS:
        names = [str(path) for path in ordered]
        remedy = "give files that are whole"
        return _open(source, column, skip_bad, remedy, path=_LOADERS[kind], data_files=names)
    parse = plain_line if kind == ".txt" else json_line(column)
    return LineStream(ordered, parse, source, skip_bad)


def _open(source: str, column: str, skip_bad: bool, remedy: str, **what: Any) -> TextStream:
    try:
        import datasets
    except ImportError as error:
        raise DatasetError(
            "tokenize needs the package datasets; pip install 'scalewise[hub]'"
        ) from error
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # it raises what it logs
    try:
        stream = datasets.load_dataset(**what, split="train", streaming=True)
    except (OSError, ValueError, RuntimeError) as error:  # StopIteration comes as a RuntimeError
        raise DatasetError(
            f"{source} cannot be opened: {in_one_line(error, 200)}; {remedy}"
        ) from error
    return HubStream(stream, column, source, skip_bad)
