"""Texts of the Hugging Face hub or of local files, streamed document by document."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from scalewise.datasets.errors import DatasetError
from scalewise.datasets.text_lines import (
    MEND,
    LineStream,
    Skipped,
    checked_text,
    json_line,
    plain_line,
)
from scalewise.errors import in_one_line


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


class TextStream(Protocol):
    """Documents, one after the other, from where it was told to go on."""

    source: str
    """What the documents are, for the records."""
    skipped: Skipped

    def state(self) -> dict[str, Any]:
        """Where it stands: what :meth:`resume` takes."""
        ...

    def resume(self, state: Any) -> None:
        """Go on after the document at which ``state`` was taken."""
        ...

    def __iter__(self) -> Iterator[str]: ...


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
            try:
                text = checked_text(row, self._column)
            except ValueError as error:
                self.skipped.note(f"{self.source}, document {number}: {error}", MEND)
                continue
            yield text


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
