"""Texts with a class from a CSV file, and what is wrong with such a file, row by row."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from scalewise.datasets.errors import DatasetError


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


@dataclass(frozen=True)
class LabelledTexts:
    """Texts and their classes, in the order of the file."""

    texts: tuple[str, ...]
    labels: tuple[int, ...]


def read_labelled_csv(path: Path, layout: CsvLayout) -> LabelledTexts:
    """Read a whole file.

    Raises :class:`DatasetError` with the number of the row, counted from 1, for the first row that
    is not as ``layout`` says, and for a file that is missing, empty or not UTF-8.
    """
    label_at = layout.columns.index(layout.label)
    texts: list[str] = []
    labels: list[int] = []
    for number, row in enumerate(_rows(path), start=1):
        if number == 1 and _is_header(row, label_at, layout):
            continue
        _check_row(path, number, row, label_at, layout)
        labels.append(layout.classes[row[label_at].strip()])
        texts.append(" ".join(cell for i, cell in enumerate(row) if i != label_at))
    if not texts:
        raise DatasetError(
            f"{path}: found no rows; allowed: a CSV file of {', '.join(layout.columns)}"
        )
    return LabelledTexts(tuple(texts), tuple(labels))


def _rows(path: Path) -> Iterator[list[str]]:
    csv.field_size_limit(sys.maxsize)
    number = 0
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.reader(file, strict=True):
                number += 1
                yield row
    except OSError as error:
        raise DatasetError(
            f"dataset.path: {path} cannot be read: {error.strerror}; give a CSV file"
        ) from error
    except UnicodeDecodeError as error:
        raise DatasetError(
            f"{path}, after row {number}: found a byte that is not UTF-8 ({error.reason}); "
            "allowed: UTF-8 text"
        ) from error
    except csv.Error as error:
        raise DatasetError(
            f"{path}, row {number + 1}: found malformed CSV ({error}); allowed: comma-separated "
            "cells, quoted with double quotes"
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
