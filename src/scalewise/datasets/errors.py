"""What is wrong with data. Free of torch: the sweep looks at files before anything starts."""

from __future__ import annotations

from pathlib import Path


class DatasetError(ValueError):
    """Data that are missing or not what they should be: one line that says where and what."""


def check_not_empty(path: Path, size_bytes: int) -> None:
    """Raises :class:`DatasetError` for a text file of no bytes."""
    if not size_bytes:
        raise DatasetError(f"dataset.path: {path} is empty; give a text file that holds text")
