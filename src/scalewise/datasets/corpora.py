"""Texts of the Hugging Face hub or of local files, streamed document by document."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalewise.datasets.contract import DatasetError


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

_LOADERS = {".parquet": "parquet", ".jsonl": "json", ".json": "json", ".txt": "text"}


class TextStream:
    """Documents, one after the other, from where it was told to go on.

    Args:
        stream: a streaming ``datasets.IterableDataset``.
        column: the column that holds the text.
        source: what the documents are, for the records.
    """

    def __init__(self, stream: Any, column: str, source: str) -> None:
        self._stream = stream
        self._column = column
        self.source = source

    def state(self) -> dict[str, Any]:
        """Where the iterator stands: what :meth:`resume` takes."""
        state = self._stream.state_dict()
        assert isinstance(state, dict)
        return state

    def resume(self, state: Any) -> None:
        """Go on after the document at which ``state`` was taken."""
        self._stream.load_state_dict(state)

    def __iter__(self) -> Iterator[str]:
        for number, row in enumerate(self._stream):
            text = row.get(self._column)
            if not isinstance(text, str):
                raise DatasetError(
                    f"{self.source}, document {number}: found no text in column {self._column!r}; "
                    f"allowed: one of {', '.join(row)}"
                )
            yield text


def open_corpus(name: str) -> TextStream:
    """A corpus of the hub. Raises :class:`DatasetError` for an unknown name and without a hub."""
    if name not in CORPORA:
        raise DatasetError(f"corpus: found {name!r}; allowed: {', '.join(CORPORA)}, or --files")
    corpus = CORPORA[name]
    return _open(
        f"{corpus.repository}{'/' + corpus.subset if corpus.subset else ''}",
        corpus.column,
        path=corpus.repository,
        name=corpus.subset,
    )


def open_files(files: Sequence[Path], column: str = "text") -> TextStream:
    """Local ``.parquet``, ``.jsonl``, ``.json`` or ``.txt`` files, a line a document in the last.

    All of one kind. Raises :class:`DatasetError` for none, a missing one, or a mixture.
    """
    if not files:
        raise DatasetError("--files: found none; allowed: .parquet, .jsonl, .json or .txt files")
    missing = [str(file) for file in files if not file.is_file()]
    if missing:
        raise DatasetError(f"--files: found no file {missing[0]}")
    kinds = {_LOADERS.get(file.suffix) for file in files}
    if len(kinds) != 1 or None in kinds:
        found = ", ".join(sorted({file.suffix or file.name for file in files}))
        raise DatasetError(f"--files: found {found}; allowed: one of {', '.join(_LOADERS)}")
    names = sorted(str(file.resolve()) for file in files)
    source = f"{len(files)} files" if len(files) > 1 else files[0].name
    # Files of the same names elsewhere are other texts; their sizes tell, and no path is recorded.
    told = "\n".join(f"{Path(n).name} {Path(n).stat().st_size} {n}" for n in names)
    source += f" ({hashlib.sha256(told.encode()).hexdigest()[:12]})"
    return _open(source, column, path=kinds.pop(), data_files=names)


def _open(source: str, column: str, **what: Any) -> TextStream:
    try:
        import datasets
    except ImportError as error:
        raise DatasetError(
            "tokenize needs the package datasets; pip install 'scalewise[hub]'"
        ) from error
    datasets.disable_progress_bars()
    try:
        stream = datasets.load_dataset(**what, split="train", streaming=True)
    except (OSError, ValueError, RuntimeError) as error:
        raise DatasetError(
            f"{source} cannot be opened: {' '.join(str(error).split())[:200]}; a hub must be "
            "reachable (HF_ENDPOINT, HF_TOKEN), or give local files with --files"
        ) from error
    return TextStream(stream, column, source)
