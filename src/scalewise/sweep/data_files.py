"""The files of our own data sets, looked at before anything starts, and without torch.

Missing and torn ones are refused here, and batches larger than what they hold. Only what takes
next to no time is read; the rest is found wanting by the ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from scalewise.components import Component
from scalewise.datasets.errors import DatasetError
from scalewise.datasets.token_index import check_sizes, load_index
from scalewise.errors import ConfigError
from scalewise.sweep.plan import Request, check_samples, samples_are

_SHARDS = "scalewise.datasets.token_shards.TokenShards"
_TEXT = "scalewise.datasets.text_file.TextFile"


def check_files(requests: Iterable[Request]) -> None:
    """Raises :class:`ConfigError` for the first data file of ours that will not do."""
    sound: set[str] = set()
    for one in requests:
        dataset: Component = one.cell.dataset
        if not dataset.target.startswith("scalewise."):
            continue
        known = repr(dataset)
        if known not in sound:
            sound.add(known)
            _check(dataset)
        check_samples(one.cell)


def _check(dataset: Component) -> None:
    shards = dataset.target == _SHARDS  # whose own refusal names what writes them
    for key, what in (("path", "a file"), ("root", "a folder")):
        path = dataset.arguments.get(key)
        if isinstance(path, str) and path and not shards and not Path(path).exists():
            raise ConfigError(
                f"dataset.{key}: {path} cannot be read: No such file or directory; allowed: "
                f"{what} that is there (from {Path.cwd()})"
            )
    count = {_SHARDS: _shard_windows, _TEXT: _byte_windows}.get(dataset.target)
    if count is None or "path" not in dataset.arguments:
        return
    try:
        samples_are(dataset, count(dataset.arguments))
    except DatasetError as error:
        raise ConfigError(str(error)) from error


def _shard_windows(arguments: Mapping[str, Any]) -> int:
    """Training samples of a folder of token shards whose files are all there."""
    folder = Path(arguments["path"])
    length: int = arguments.get("sequence_length", 1024)
    index = load_index(folder)
    check_sizes(folder, index)
    found = sum(max(0, (s.tokens - 1) // length) for s in index.shards if s.part == "train")
    if not found:
        raise DatasetError(
            f"dataset.sequence_length: found {length}, longer than any shard of {folder}; "
            "allowed: less, or tokenize more text"
        )
    return found


def _byte_windows(arguments: Mapping[str, Any]) -> int:
    """Training samples of a text file, by its size."""
    path = Path(arguments["path"])
    length: int = arguments.get("sequence_length", 256)
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
    except OSError as error:
        raise DatasetError(
            f"dataset.path: {path} cannot be read: {error.strerror}; give a text file"
        ) from error
    held_out: int = round(size * arguments.get("validation_fraction", 0.1))
    for part in (size - held_out, held_out):
        if part <= length and (part or size == held_out):
            raise DatasetError(
                f"dataset.sequence_length: found {length}; allowed: below {part}, the bytes in a "
                f"part of {path.name}"
            )
    return (size - held_out - 1) // length
