"""Texts with a class from the Hugging Face hub, or from a folder in its layout."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

from scalewise.datasets.contract import DatasetError
from scalewise.datasets.labelled_csv import LabelledTexts
from scalewise.errors import in_one_line


@dataclass(frozen=True)
class HubLayout:
    """A data set of the hub with a text and a class a row."""

    repository: str
    text: str
    """The column that holds the text."""
    label: str
    """The column that holds the class, a number from 0."""
    classes: int


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
    import datasets

    datasets.disable_progress_bars()
    try:
        rows = datasets.load_dataset(layout.repository, split=split)
    except (OSError, ValueError, RuntimeError) as error:
        raise DatasetError(
            f"dataset.path: found null, and {layout.repository} cannot be fetched: "
            f"{in_one_line(error, 200)}; give a CSV file, dataset.path=FILE, or a hub "
            "(HF_ENDPOINT)"
        ) from error
    missing = [name for name in (layout.text, layout.label) if name not in rows.column_names]
    if missing:
        raise DatasetError(
            f"{layout.repository}: found no column {missing[0]!r}; allowed: a data set with "
            f"{layout.text} and {layout.label}, found {', '.join(rows.column_names)}"
        )
    texts, labels = tuple(rows[layout.text]), tuple(rows[layout.label])
    for number, (text, label) in enumerate(zip(texts, labels, strict=True), start=1):
        if not isinstance(text, str) or label not in range(layout.classes):
            raise DatasetError(
                f"{layout.repository}, row {number}: found class {label!r}; allowed: a text and a "
                f"class of 0 to {layout.classes - 1}"
            )
    return LabelledTexts(texts, labels)
