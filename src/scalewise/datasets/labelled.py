"""Texts with a class from a CSV file, and what is wrong with such a file, row by row."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from scalewise.config import DatasetError, in_one_line


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


_ENCODING = "utf-8-sig"
"""UTF-8 with or without the byte-order mark that Excel writes."""
LabelledTexts: TypeAlias = list[tuple[str, int]]
"""Texts and their classes, in the order of the file."""


def read_labelled_csv(path: Path, layout: CsvLayout) -> LabelledTexts:
    """Read a whole file.

    Raises :class:`DatasetError` with the number of the row, counted from 1, for the first row that
    is not as ``layout`` says, and for a file that is missing, empty or not UTF-8.
    """
    try:
        rows = list(_rows(path, layout))
    except OSError as error:
        raise DatasetError(
            f"dataset.path: {path} cannot be read: {error.strerror}; give a CSV file"
        ) from error
    if not rows:
        columns = ", ".join(layout.columns)
        raise DatasetError(f"{path}: found no rows; allowed: a CSV file of {columns}")
    return rows


def _rows(path: Path, layout: CsvLayout) -> Iterator[tuple[str, int]]:
    """The rows but for a header. Raises :class:`DatasetError`, OSError."""
    csv.field_size_limit(sys.maxsize)
    number, at = 0, layout.columns.index(layout.label)
    with path.open(encoding=_ENCODING, newline="") as file:
        try:
            for number, row in enumerate(csv.reader(file, strict=True), start=1):
                label = row[at].strip() if at < len(row) else ""
                if number == 1 and label.lower() in layout.header_labels:
                    continue
                text = " ".join(row[:at] + row[at + 1 :])
                whole = len(row) == len(layout.columns) and bool(text.strip())
                if not whole or label not in layout.classes:
                    raise DatasetError(
                        f"{path}, row {number}: found {str(row)[:80]}; allowed: "
                        f"{', '.join(layout.columns)}: text, and a {layout.label} of "
                        f"{', '.join(layout.classes)}"
                    )
                yield text, layout.classes[label]
        except (UnicodeDecodeError, csv.Error) as error:
            raise DatasetError(
                f"{path}, after row {number}: {error}; allowed: UTF-8 text, comma-separated cells, "
                "quoted with double quotes"
            ) from error


# Texts with a class from the Hugging Face hub, or from a folder in its layout.


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


def check_hub(repository: str) -> None:
    """Raise :class:`DatasetError` where the library that fetches from the hub is not installed."""
    if importlib.util.find_spec("datasets") is None:
        raise DatasetError(
            f"path: found null, and the package datasets that would fetch {repository} is "
            "not installed; give a CSV file, dataset.path=FILE, or pip install 'scalewise[hub]'"
        )


def read_labelled_hub(repository: str, split: str, classes: int) -> LabelledTexts:
    """Read the columns ``text`` and ``label`` (a number from 0) of one split, in its order.

    The library keeps what it fetched in its own cache. Raises :class:`DatasetError` without a hub,
    and for the first row without a text or without one of the ``classes``.
    """
    remedy = "give a CSV file, dataset.path=FILE, or a hub (HF_ENDPOINT)"
    source = f"dataset.path: found null, and {repository}"
    rows = load_rows(source, ("text", "label"), remedy, path=repository, split=split)
    found = list(zip(rows["text"], rows["label"], strict=True))
    for number, (text, label) in enumerate(found, start=1):
        if not isinstance(text, str) or label not in range(classes):
            raise DatasetError(
                f"{repository}, row {number}: found class {label!r}; allowed: a text and a "
                f"class of 0 to {classes - 1}"
            )
    return found


# Dividing data into a part to train on and a part to judge by.


def split_indices(
    count: int, validation_fraction: float, seed: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """``(train, validation)``: every index below ``count`` once, in a random order of ``seed``.

    At least one index goes to validation unless the fraction is 0, and at least one to training.
    """
    order = np.random.default_rng(seed).permutation(count)
    some = validation_fraction > 0 and count > 1
    held_out = min(count - 1, max(1, round(count * validation_fraction))) if some else 0
    return order[held_out:], order[:held_out]
