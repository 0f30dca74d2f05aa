"""Refuses what cannot run before anything starts: data files, a user's own classes, this host.

Of data files, only what takes next to no time is read, and without torch. Left to the ranks: the
rows of a CSV file past its first MiB, and so the number of rows of such a file; the sums of token
shards; what lies in the files below a ``root``; and whatever the hub sends.
"""

from __future__ import annotations

import inspect
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from scalewise.config import (
    FP8_CAPABILITY,
    OPTIMIZER_GIVEN,
    CellConfig,
    Component,
    ConfigError,
    DatasetError,
    bind,
    check_not_empty,
    check_optimizer,
    in_one_line,
    load_target,
    require,
)
from scalewise.datasets import AG_NEWS, IMDB, CsvLayout, check_sizes, load_index, look_at_csv
from scalewise.gpu import Host, HostMismatch, Hosts
from scalewise.host import plural
from scalewise.records import to_plain
from scalewise.sweep.plan import Cell, Request, check_samples, samples_are

_SHARDS = "scalewise.datasets.token_shards.TokenShards"
_TEXT = "scalewise.datasets.text_file.TextFile"
_CSV = {
    "scalewise.datasets.text_classification.AgNews": AG_NEWS,
    "scalewise.datasets.text_classification.Imdb": IMDB,
}
_GPT2 = "scalewise.models.gpt2.Gpt2"


def check_files(requests: Iterable[Request]) -> None:
    """Raises :class:`ConfigError` for the first data file of ours that will not do."""
    sound: set[str] = set()
    for one in requests:
        dataset: Component = one.cell.dataset
        if not dataset.target.startswith("scalewise."):
            continue
        if repr(dataset) not in sound:
            _check(dataset)
            sound.add(repr(dataset))
        _check_vocabulary(one.cell.model, dataset)
        check_samples(one.cell)


def _check_vocabulary(model: Component, dataset: Component) -> None:
    """Refuse shards with tokens that a language model of ours does not know, as it would itself."""
    found = model.arguments.get("vocabulary_size")
    shards = dataset.arguments.get("path") if dataset.target == _SHARDS else None
    if model.target != _GPT2 or shards is None or not isinstance(found, int):
        return  # the class says what it takes
    least = load_index(Path(shards)).vocabulary_size
    try:
        allowed = f"at least {least}, the data set's vocabulary_size"
        require("model.vocabulary_size", found, found >= least, allowed)
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
        samples = None  # where only reading all of the files would tell
        if dataset.target == _SHARDS:
            samples = _shard_windows(dataset.arguments)
        elif dataset.target == _TEXT:
            samples = _byte_windows(dataset.arguments)
        elif dataset.target in _CSV:
            samples = _csv_rows(dataset.arguments, _CSV[dataset.target])
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


def _csv_rows(arguments: Mapping[str, Any], layout: CsvLayout) -> int | None:
    """Training samples of a short CSV file; of a long one, only its first rows are looked at."""
    from scalewise.datasets import held_out_of  # it imports NumPy

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


def check_precision(cell: CellConfig, host: Host) -> None:
    """Refuse what Lightning would silently replace by another number format.

    Raises :class:`HostMismatch`.
    """
    on_cpu = all(slot.kind == "cpu" for slot in host.slots)
    if on_cpu and cell.precision.lightning == "16-mixed":
        raise HostMismatch(
            f"precision: found {cell.precision.name}, which needs a GPU; allowed here: "
            "bf16-mixed or fp32"
        )
    if cell.precision.fp8:
        _check_fp8(cell, host)


def _check_fp8(cell: CellConfig, host: Host) -> None:
    """Refuse fp8 on devices that have none, and without the library. Raises HostMismatch."""
    name, lowest = cell.precision.name, ".".join(map(str, FP8_CAPABILITY))
    for slot in host.slots:
        capability = host.capabilities.get(slot.uuid or "")
        if slot.kind == "cpu" or (capability is not None and capability < FP8_CAPABILITY):
            have = f", and {slot.name} has {capability[0]}.{capability[1]}" if capability else ""
            raise HostMismatch(
                f"precision: found {name}, which needs a GPU of compute capability {lowest} or "
                f"higher{have}; allowed here: bf16-mixed or fp32"
            )
    if find_spec("torchao") is None:
        raise HostMismatch(
            f"precision: found {name}, which needs torchao; run pip install 'scalewise[fp8]', or "
            "use precision=bf16-mixed"
        )


def devices_for(cell: CellConfig, host: Host) -> int:
    """Number of devices that the cell takes of ``host``.

    Raises :class:`HostMismatch` where the cell cannot run there.
    """
    check_precision(cell, host)
    if cell.profile.nvtx and all(slot.kind == "cpu" for slot in host.slots):
        raise HostMismatch(
            "profile.nvtx: found true, which needs a GPU; allowed here: false (profile.trace=true "
            "shows the operators of a CPU)"
        )
    try:
        cell.execution.check_host(host.slots[0].kind)
    except ValueError as error:
        raise HostMismatch(str(error)) from None
    return width(cell, len(host.slots))


def width(cell: CellConfig, available: int) -> int:
    """Devices the cell takes on a host with ``available`` of them.

    Raises :class:`HostMismatch` where there are not enough, and ConfigError where the batch
    cannot be shared by as many.
    """
    wanted = cell.strategy.devices
    if wanted == "auto":
        if available < 2:
            raise HostMismatch(
                f"strategy={cell.strategy.name} with devices=auto needs two devices or more, and "
                f"this host has {available}; use strategy=single here"
            )
        wanted = available
    if wanted > available:
        raise HostMismatch(
            f"strategy.devices: found {wanted}, but this host has {available} "
            f"{plural(available, 'device')}; allowed: at most {available}"
        )
    try:
        cell.per_device_batch_size(wanted)
    except ConfigError as error:
        raise HostMismatch(str(error)) from None
    return wanted


def differs_here(cell: CellConfig, devices: int, host: Host) -> Iterator[str]:
    """Lines on what ``host`` does otherwise than the cell's configuration means."""
    expected = cell.sweep.expected_devices
    if cell.strategy.devices == "auto" and expected not in (None, devices):
        yield f"made for {expected} devices; this host has {devices}, and all take part"
    if cell.precision.name == "tf32" and all(slot.kind == "cpu" for slot in host.slots):
        yield "precision=tf32: a CPU has no TF32 and computes in full fp32"
    if cell.precision.fp8 and not cell.execution.compiles:
        yield (
            "precision=fp8: every cast to fp8 is kernels of its own in eager steps, which can "
            "cost more than fp8 saves; execution=compile fuses them"
        )


_Asked = tuple[str, Component, str]
"""Group, what it names, and what was typed of an optimizer beside a model."""
_TIMEOUT_S = 120.0
_sound: set[str] = set()
"""Classes that took arguments of these names: a sweeper that asks in batches asks once."""


def check_own_code(requests: Iterable[Request]) -> None:
    """Import and check a user's own classes in one short-lived process before any cell starts.

    The sweep itself stays free of whatever such an import does, and of a crash in it. Raises
    :class:`ConfigError` for the first class or argument that will not do.
    """
    asked: dict[str, _Asked] = {}
    for one in requests:
        for key in ("model", "dataset", "optimizer"):
            component: Component = getattr(one.cell, key)
            typed = _typed_optimizer(one.overrides) if key == "model" else ""
            new = (key, component, typed)
            if not component.target.startswith("scalewise.") and _call(new) not in _sound:
                asked.setdefault(f"{key} {component!r} {bool(typed)}", new)
    if asked:
        _ask(list(asked.values()))
        _sound.update(map(_call, asked.values()))


def _call(asked: _Asked) -> str:
    key, component, typed = asked
    return f"{key} {component.target} {sorted(component.arguments)} {bool(typed)}"


def _typed_optimizer(overrides: Iterable[str]) -> str:
    """The first override that chooses or sets an optimizer; empty without one."""
    for override in overrides:
        key = override.partition("=")[0].lstrip("+~")
        if key == "optimizer" or key.startswith("optimizer."):
            return override
    return ""


def _ask(asked: Sequence[_Asked]) -> None:
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "scalewise.sweep.preflight"],
            input=json.dumps(to_plain(asked)),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p or "." for p in sys.path)},
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise _unanswered(asked, f"took more than {_TIMEOUT_S:g} s") from None
    if not done.stdout:
        end = done.returncode
        how = f"exit status {end}" if end >= 0 else f"signal {-end}"
        raise _unanswered(asked, f"ended the process that tried it ({how})")
    error = json.loads(done.stdout)["error"]
    if error is not None:
        raise ConfigError(error)


def _unanswered(asked: Sequence[_Asked], what: str) -> ConfigError:
    keys = ", ".join(dict.fromkeys(f"{key}._target_" for key, _, _ in asked))
    modules = ", ".join(dict.fromkeys(c.target.rpartition(".")[0] for _, c, _ in asked))
    return ConfigError(
        f"{keys}: importing {modules} {what}; allowed: modules that can be imported without a "
        f"cell; python -X faulthandler -c 'import {modules}' shows where it ends"
    )


def main() -> None:
    """Look at each component of standard input; the first error, or null, as JSON."""
    with os.fdopen(os.dup(1), "w") as answer:
        os.dup2(2, 1)  # what the user's modules print is no answer
        asked = [(key, Component(**plain), typed) for key, plain, typed in json.load(sys.stdin)]
        json.dump({"error": next(filter(None, map(_error_of, asked)), None)}, answer)


def _error_of(asked: _Asked) -> str | None:
    key, component, _ = asked
    try:
        _look(*asked)
    except ConfigError as error:
        return str(error)
    except (Exception, SystemExit) as error:  # whatever the user's module raises, it is his to mend
        why = in_one_line(error, with_class=True)
        return f"{key}._target_: importing {component.target.rpartition('.')[0]} failed: {why}"
    return None


def _look(key: str, component: Component, typed: str) -> None:
    target, name = load_target(key, component), component.target
    if not callable(target):
        raise ConfigError(f"{key}._target_: found {name}, which is no class; allowed: a class")
    if key == "model":
        _check_lightning(component, target, typed)
    if key == "optimizer":
        check_optimizer(component, target)
    bind(key, component, target, OPTIMIZER_GIVEN if key == "optimizer" else ())


def _check_lightning(component: Component, target: Any, typed: str) -> None:
    lightning = sys.modules.get("pytorch_lightning")  # no class of it was made without importing it
    if lightning is None or not inspect.isclass(target):
        return
    if not issubclass(target, lightning.LightningModule):
        return
    for method in ("training_step", "configure_optimizers"):
        if getattr(target, method) is getattr(lightning.LightningModule, method):
            raise ConfigError(
                f"model._target_: found {component.target}, a LightningModule without {method}; "
                "allowed: one that has it, or an nn.Module with loss(output, target)"
            )
    if typed:
        raise ConfigError(
            f"optimizer: found {typed} beside model._target_={component.target}, a LightningModule,"
            " which builds its own; allowed: nothing of optimizer; leave it out, or give the class "
            "an argument for it: model.KEY=VALUE"
        )


@dataclass(frozen=True)
class Place:
    """Where a cell would run."""

    width: int | None
    """Devices; None where only the host that runs it will tell."""
    refusal: str = ""
    """Why it cannot run here; empty if it can."""


class ThisHost:
    """Where the cells of a sweep would run on this host."""

    def __init__(self) -> None:
        self._hosts = Hosts()

    def __call__(self, cell: Cell) -> Place:
        config = cell.request.cell
        try:
            return Place(devices_for(config, self._hosts.of(config.hardware)))
        except HostMismatch as mismatch:
            return Place(None, str(mismatch))

    def slots(self) -> int:
        """The most devices that any cell asked about so far could get."""
        return self._hosts.slots() or 1

    def models(self) -> set[str]:
        """Models of the devices of the profiles asked about so far."""
        return {slot.name for host in self._hosts.known() for slot in host.slots}


class Cluster(ThisHost):
    """Where cells would run on a cluster that nobody has asked yet: what they ask for."""

    def __call__(self, cell: Cell) -> Place:
        return Place(cell.planned.devices)


if __name__ == "__main__":
    main()
