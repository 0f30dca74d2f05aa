"""The files of our own data sets, looked at before anything starts, and without torch.

Missing and torn ones are refused here, batches larger than what they hold, and models that do not
know all their tokens. Only what takes next to no time is read. Left to the ranks: the rows of a CSV
file past its first MiB, and so the number of rows of such a file; the sums of token shards; what
lies in the files below a ``root``; and whatever the hub sends.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from scalewise.components import Component
from scalewise.datasets.errors import DatasetError, check_not_empty
from scalewise.datasets.labelled_csv import AG_NEWS, IMDB, CsvLayout, look_at_csv
from scalewise.datasets.token_index import check_sizes, load_index
from scalewise.errors import ConfigError
from scalewise.ranges import require
from scalewise.sweep.component_checks import check_samples, samples_are
from scalewise.sweep.plan import Request

_SHARDS = "scalewise.datasets.token_shards.TokenShards"
_TEXT = "scalewise.datasets.text_file.TextFile"
_CSV = {
    "scalewise.datasets.text_classification.AgNews": AG_NEWS,
    "scalewise.datasets.text_classification.Imdb": IMDB,
}
_GPT2 = "scalewise.models.gpt2.Gpt2"


def check_files(requests: Iterable[Request]) -> None:
    """Raises :class:`ConfigError` for the first data file of ours that will not do."""
    sound: dict[str, Mapping[str, int]] = {}
    for one in requests:
        dataset: Component = one.cell.dataset
        if not dataset.target.startswith("scalewise."):
            continue
        known = repr(dataset)
        if known not in sound:
            _check(dataset)
            sound[known] = _needs(dataset)
        _check_model(one.cell.model, sound[known])
        check_samples(one.cell)


def _needs(dataset: Component) -> Mapping[str, int]:
    """What a language model must have at least to train on shards of tokens, by argument."""
    if dataset.target != _SHARDS or "path" not in dataset.arguments:
        return {}
    index = load_index(Path(dataset.arguments["path"]))
    return {"vocabulary_size": index.vocabulary_size}


def _check_model(model: Component, needs: Mapping[str, int]) -> None:
    """Refuse, as the model itself would: only of our own is it known what its arguments mean."""
    if model.target != _GPT2:
        return
    for key, least in needs.items():
        found = model.arguments.get(key)
        if not isinstance(found, int):
            continue  # the class says what it takes
        try:
            allowed = f"at least {least}, the data set's {key}"
            require(f"model.{key}", found, found >= least, allowed)
        except ValueError as error:
            raise ConfigError(str(error)) from error


def _check(dataset: Component) -> None:
    shards = dataset.target == _SHARDS  # whose own refusal names what writes them
    for key, what in (("path", "a file"), ("root", "a folder")):
        path = dataset.arguments.get(key)
        if not isinstance(path, str) or not path or shards:
            continue
        why = _unreachable(path)
        if why is not None:
            raise ConfigError(
                f"dataset.{key}: {path} cannot be read: {why}; allowed: "
                f"{what} that is there (from {Path.cwd()})"
            )
    if not dataset.arguments.get("path"):
        return
    try:
        samples = _training_samples(dataset)
    except DatasetError as error:
        raise ConfigError(str(error)) from error
    if samples is not None:
        samples_are(dataset, samples)


def _unreachable(path: str) -> str | None:
    """Why nothing can be read there, in the words of the system; None where something can."""
    try:
        mode = Path(path).stat().st_mode
    except OSError as error:  # a loop of symbolic links is no missing file
        return error.strerror
    except ValueError as error:  # a text with a NUL is no path
        return str(error)
    return None if stat.S_ISREG(mode) or stat.S_ISDIR(mode) else "neither a file nor a folder"


def _training_samples(dataset: Component) -> int | None:
    """Of the files of ``dataset``; None where only reading all of them would tell.

    Raises :class:`DatasetError`.
    """
    if dataset.target == _SHARDS:
        return _shard_windows(dataset.arguments)
    if dataset.target == _TEXT:
        return _byte_windows(dataset.arguments)
    if dataset.target in _CSV:
        return _csv_rows(dataset.arguments, _CSV[dataset.target])
    return None


def _csv_rows(arguments: Mapping[str, Any], layout: CsvLayout) -> int | None:
    """Training samples of a short CSV file; of a long one, only its first rows are looked at."""
    from scalewise.datasets.split import held_out_of  # it imports NumPy

    rows = look_at_csv(Path(arguments["path"]), layout)
    if rows is None:
        return None
    return rows - held_out_of(rows, arguments.get("validation_fraction", 0.2))


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
    check_not_empty(path, size)
    held_out: int = round(size * arguments.get("validation_fraction", 0.1))
    for part in (size - held_out, held_out):
        if part <= length and (part or size == held_out):
            raise DatasetError(
                f"dataset.sequence_length: found {length}; allowed: below {part}, the bytes in a "
                f"part of {path.name}"
            )
    return (size - held_out - 1) // length
