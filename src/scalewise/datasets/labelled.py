"""Texts with a class from a CSV file, and what is wrong with such a file, row by row."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from scalewise.config import DatasetError, in_one_line, require


@dataclass(frozen=True)
class CsvLayout:
    """The columns of a file and the classes it may name."""

    columns: tuple[str, ...]
    label: str
    """The column that names the class; the others are text."""
    classes: Mapping[str, int]
    """The class as the file spells it to its number, from 0."""
    header_labels: tuple[str, ...]
    """What stands in the label's column, in lower case, when the first row is a header."""


AG_NEWS = CsvLayout(
    columns=("class", "title", "description"),
    label="class",
    classes={"1": 0, "2": 1, "3": 2, "4": 3},
    header_labels=("class", "class index"),
)
IMDB = CsvLayout(
    columns=("review", "sentiment"),
    label="sentiment",
    classes={"negative": 0, "positive": 1},
    header_labels=("sentiment",),
)
_ENCODING = "utf-8-sig"
"""UTF-8 with or without the byte-order mark that Excel writes."""
HEAD_ROWS = 2000
"""Rows that :func:`look_at_csv` reads at most: some milliseconds' worth."""


@dataclass(frozen=True)
class LabelledTexts:
    """Texts and their classes, in the order of the file."""

    texts: tuple[str, ...]
    labels: tuple[int, ...]


def read_labelled_csv(path: Path, layout: CsvLayout, most_rows: int | None = None) -> LabelledTexts:
    """Read a whole file, or its first rows.

    Raises :class:`DatasetError` with the number of the row, counted from 1, for the first row that
    is not as ``layout`` says, and for a file that is missing, empty or not UTF-8.
    """
    label_at = layout.columns.index(layout.label)
    try:
        rows = list(islice(_rows(path, layout), most_rows))
    except OSError as error:
        raise DatasetError(
            f"dataset.path: {path} cannot be read: {error.strerror}; give a CSV file"
        ) from error
    if not rows:
        columns = ", ".join(layout.columns)
        raise DatasetError(f"{path}: found no rows; allowed: a CSV file of {columns}")
    texts = (" ".join(cell for i, cell in enumerate(row) if i != label_at) for row in rows)
    labels = (layout.classes[row[label_at].strip()] for row in rows)
    return LabelledTexts(tuple(texts), tuple(labels))


def look_at_csv(path: Path, layout: CsvLayout, most_rows: int = HEAD_ROWS) -> int | None:
    """Check the first rows, as :func:`read_labelled_csv` would. Raises :class:`DatasetError`.

    Returns the number of rows of a file with fewer, and None for a longer one.
    """
    found = len(read_labelled_csv(path, layout, most_rows).texts)
    return found if found < most_rows else None


def _rows(path: Path, layout: CsvLayout) -> Iterator[list[str]]:
    """The rows but for a header, each as ``layout`` says. Raises :class:`DatasetError`, OSError."""
    csv.field_size_limit(sys.maxsize)
    label_at = layout.columns.index(layout.label)
    number = 0
    with path.open(encoding=_ENCODING, newline="") as file:
        try:
            for number, row in enumerate(csv.reader(file, strict=True), start=1):
                if number == 1 and _is_header(row, label_at, layout):
                    continue
                _check_row(path, number, row, label_at, layout)
                yield row
        except UnicodeDecodeError as error:
            raise DatasetError(
                f"{path}, after row {number}: found a byte that is not UTF-8 ({error.reason}); "
                "allowed: UTF-8 text"
            ) from error
        except csv.Error as error:
            raise DatasetError(
                f"{path}, row {number + 1}: found malformed CSV ({error}); allowed: "
                "comma-separated cells, quoted with double quotes"
            ) from error


def _is_header(row: list[str], label_at: int, layout: CsvLayout) -> bool:
    return len(row) == len(layout.columns) and row[label_at].strip().lower() in layout.header_labels


def _check_row(path: Path, number: int, row: list[str], label_at: int, layout: CsvLayout) -> None:
    if len(row) != len(layout.columns):
        raise DatasetError(
            f"{path}, row {number}: found {len(row)} columns; allowed: {len(layout.columns)} "
            f"({', '.join(layout.columns)})"
        )
    if row[label_at].strip() not in layout.classes:
        raise DatasetError(
            f"{path}, row {number}: found {layout.label} {row[label_at][:40]!r}; allowed: "
            + ", ".join(layout.classes)
        )
    if not any(cell.strip() for i, cell in enumerate(row) if i != label_at):
        raise DatasetError(f"{path}, row {number}: found no text; allowed: at least one word")


# Texts with a class from the Hugging Face hub, or from a folder in its layout.


@dataclass(frozen=True)
class HubLayout:
    """A data set of the hub with a text and a class a row."""

    repository: str
    text: str
    """The column that holds the text."""
    label: str
    """The column that holds the class, a number from 0."""
    classes: int


def hub_package(name: str, wanted_by: str) -> Any:
    """A package of the extra ``hub``. Raises :class:`DatasetError` where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise DatasetError(
            f"{wanted_by} needs the package {name}; pip install 'scalewise[hub]'"
        ) from error


def load_rows(source: str, columns: Sequence[str], remedy: str, **given: Any) -> Any:
    """The columns of what ``datasets.load_dataset`` returns for ``given``.

    Raises :class:`DatasetError` in one line that begins with ``source`` and, for data that cannot
    be read, ends with ``remedy``.
    """
    datasets = hub_package("datasets", source)
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # it raises what it logs
    try:
        rows = datasets.load_dataset(**given)
    except (OSError, ValueError, RuntimeError, StopIteration) as error:  # the last: an empty file
        raise DatasetError(
            f"{source} cannot be read: {in_one_line(error, 200, with_class=True)}; {remedy}"
        ) from error
    known = rows.column_names or columns  # a stream may learn them later
    missing = [name for name in columns if name not in known]
    if missing:
        raise DatasetError(
            f"{source}: found no column {missing[0]!r}; allowed: data with {', '.join(columns)}, "
            f"found {', '.join(known)}"
        )
    return rows.select_columns(list(columns))


def check_hub(layout: HubLayout) -> None:
    """Raise :class:`DatasetError` where the library that fetches from the hub is not installed."""
    if importlib.util.find_spec("datasets") is None:
        raise DatasetError(
            f"path: found null, and the package datasets that would fetch {layout.repository} is "
            "not installed; give a CSV file, dataset.path=FILE, or pip install 'scalewise[hub]'"
        )


def read_labelled_hub(layout: HubLayout, split: str = "train") -> LabelledTexts:
    """Read one split, in its order. The library keeps what it fetched in its own cache.

    Raises :class:`DatasetError` without a hub, and for the first row that is not as ``layout``
    says.
    """
    remedy = "give a CSV file, dataset.path=FILE, or a hub (HF_ENDPOINT)"
    source = f"dataset.path: found null, and {layout.repository}"
    rows = load_rows(
        source, (layout.text, layout.label), remedy, path=layout.repository, split=split
    )
    texts, labels = tuple(rows[layout.text]), tuple(rows[layout.label])
    for number, (text, label) in enumerate(zip(texts, labels, strict=True), start=1):
        if not isinstance(text, str) or label not in range(layout.classes):
            raise DatasetError(
                f"{layout.repository}, row {number}: found class {label!r}; allowed: a text and a "
                f"class of 0 to {layout.classes - 1}"
            )
    return LabelledTexts(texts, labels)


# Dividing data into a part to train on and a part to judge by.


def check_split(validation_fraction: float) -> None:
    """Refuse a fraction that leaves nothing to train on."""
    require(
        "validation_fraction",
        validation_fraction,
        0 <= validation_fraction < 1,
        "0 <= validation_fraction < 1 (0: no validation)",
    )


def held_out_of(count: int, validation_fraction: float) -> int:
    """How many of ``count`` samples :func:`split_indices` keeps for validation."""
    if validation_fraction == 0 or count < 2:
        return 0
    return min(count - 1, max(1, round(count * validation_fraction)))


def split_indices(
    count: int, validation_fraction: float, seed: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """``(train, validation)``: every index below ``count`` once, in a random order of ``seed``.

    At least one index goes to validation unless the fraction is 0, and at least one to training.
    """
    order = np.random.default_rng(seed).permutation(count)
    held_out = held_out_of(count, validation_fraction)
    return order[held_out:], order[:held_out]
