"""Refuses what cannot run before anything starts: data files, a user's own classes, this host.

Data files are looked at without torch: that they are there, and the sizes of files of tokens. The
rest is left to the ranks.
"""

from __future__ import annotations

import gc
import inspect
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from scalewise.config import (
    OTHER_LIGHTNING,
    OWN_LOADERS,
    REHEARSALS,
    CellConfig,
    Component,
    ConfigError,
    HardwareConfig,
    bind,
    built_arguments,
    check_nested,
    check_optimizer,
    devices_as_typed,
    find_compiler,
    in_one_line,
    key_of,
    load_target,
    nested,
    refuse_as,
    require,
    way_to_rehearse,
)
from scalewise.datasets import load_index
from scalewise.gpu import Host, HostMismatch, discover
from scalewise.records import to_plain
from scalewise.sweep.plan import Cell, Request


def check_files(requests: Iterable[Request]) -> None:
    """Raises :class:`ConfigError` for the first data file of ours, or script, that will not do.

    So it does for a checkpoint to start from that is not there.
    """
    cells = [one.cell for one in requests]
    for script in {cell.script for cell in cells if cell.script is not None}:
        script.check_here()
    for path in dict.fromkeys(cell.ckpt_path for cell in cells):
        _check_there("ckpt_path", path, "a checkpoint of Lightning's")
    for dataset in {repr(cell.dataset): cell.dataset for cell in cells}.values():
        path, root = dataset.arguments.get("path"), dataset.arguments.get("root")
        if path and dataset.target == "scalewise.datasets.text_file.TokenFolder":
            with refuse_as():
                load_index(Path(path), dataset.arguments.get("corpus"))
        elif dataset.target.startswith("scalewise."):
            _check_there("dataset.path", path or None, "a file")
            _check_there("dataset.root", root or None, "a folder", is_folder=True)
        elif name := _batches.get(repr(dataset), ("", ""))[1]:
            _check_there(f"dataset.{name}", dataset.arguments[name], "a path")


def _check_there(key: str, path: object, what: str, is_folder: bool = False) -> None:
    """Raises :class:`ConfigError` where a path is typed that does not lead to ``what``."""
    if not isinstance(path, str):
        return
    try:
        if stat.S_ISDIR(Path(path).stat().st_mode) == is_folder:
            return
        why = "no folder" if is_folder else "a folder"
    except OSError as error:
        why = error.strerror or str(error)
    raise ConfigError(
        f"{key}: {path or repr(path)} cannot be read: {why}; allowed: {what} that is there "
        f"(from {Path.cwd()})"
    )


def devices_for(one: Request, host: Host) -> int:
    """Number of devices that the cell takes of ``host``.

    Raises :class:`HostMismatch` where the cell cannot run there, and where Lightning would silently
    replace its number format by another.
    """
    cell = one.cell
    on_gpus = not all(slot.kind == "cpu" for slot in host.slots)
    precision, execution, cap = cell.precision, cell.execution, cell.hardware.memory_cap_gib
    half = precision.lightning == "16-mixed"
    for key, found, holds, needed, allowed in (
        ("precision", precision.name, not half or on_gpus, "a GPU", "bf16-mixed or fp32"),
        ("hardware.memory_cap_gib", str(cap), cap is None or on_gpus, "a GPU", "null"),
        ("profile.nvtx", "true", not cell.profile.nvtx or on_gpus, "a GPU",
         "false (profile.trace=true shows the operators of a CPU)"),
        ("execution", execution.name, execution.kind != "cudagraph" or on_gpus, "a GPU",
         "eager or compile"),
        ("execution", execution.name, not execution.compiles or find_compiler(),
         "a C++ compiler (g++, clang++, or what CXX names)", "eager"),
    ):  # fmt: skip
        if not holds:
            raise HostMismatch(
                f"{key}: found {found}, which needs {needed}; allowed here: {allowed}"
            )
    available = len(host.slots)
    devices, strategy = cell.strategy.devices, cell.strategy.name
    wanted = max(2, available) if devices == "auto" else devices
    try:
        fewer = " (strategy=single uses one)" if devices == "auto" else ""
        allowed = f"at most {available}, the devices of this host{fewer or _more(cell, host)}"
        beside = "" if cell.script else f"strategy={strategy}"
        require("strategy.devices", wanted, wanted <= available, allowed, beside)
        cell.per_device_batch_size(wanted)
    except ValueError as error:
        raise HostMismatch(devices_as_typed(str(error), one.overrides)) from None
    return wanted


def _more(cell: CellConfig, host: Host) -> str:
    """How more devices than the host has are rehearsed, where something is learned from that."""
    gpus = ", ".join(sorted({slot.name for slot in host.slots if slot.kind != "cpu"}))
    if not gpus or cell.strategy.kind not in REHEARSALS:
        return ""
    option = f"--rehearse {cell.strategy.devices}"
    keys = (f"{option} --link ", option) if cell.script else ("rehearse=", "rehearse=true")
    return f" ({way_to_rehearse(gpus, *keys)} rehearses more)"


def explain_differences(cell: CellConfig, devices: int, host: Host) -> Iterator[str]:
    """Lines on what ``host`` does otherwise than the cell's configuration means."""
    profile = f"hardware={cell.hardware.name}"
    if host.left_out:
        others = (f"GPU {gpu.index} ({gpu.name})" for gpu in host.left_out)
        yield f"{profile} leaves out {', '.join(others)}"
    yield from (f"{profile}: {warning}" for warning in cell.hardware.warnings())
    expected = cell.sweep.expected_devices
    if cell.strategy.devices == "auto" and expected not in (None, devices):
        yield f"made for {expected} devices; this host has {devices}, and all take part"
    models = sorted({slot.name for slot in host.slots[:devices]})
    if len(models) > 1 and cell.strategy.kind == "ddp":
        yield (
            f"strategy={cell.strategy.name}: its devices are unlike ({', '.join(models)}), and "
            "each step waits for the slowest; strategy=heterogeneous gives each a share of its own"
        )
    if cell.precision.name == "tf32" and all(slot.kind == "cpu" for slot in host.slots):
        yield "precision=tf32: a CPU has no TF32 and computes in full fp32"


_Asked = tuple[str, Component, str]
"""Group, what it names, and what was typed that a Lightning class of the user's decides itself."""
_TIMEOUT_S = 120.0
_LOADERS_S = 20.0
"""How long all data modules together may take to hand out their loaders."""
_sound: set[str] = set()
"""Classes that will do: a sweeper that asks in batches asks once."""
_Batch = tuple[int | str, str]
"""Samples, or why their number is not known, and the argument that names a path in vain."""
_batches: dict[str, _Batch] = {}
"""By data module, with its arguments."""
_DECIDED_BY = {"model": ("optimizer", "scheduler"), "dataset": ("batch_size", "dataset.loader")}
"""Keys without effect beside a LightningModule or LightningDataModule."""


def check_own_code(requests: Iterable[Request]) -> None:
    """Import and check a user's own classes in one short-lived process before any cell starts.

    The sweep itself stays free of whatever such an import does, and of a crash in it. Raises
    :class:`ConfigError` for the first class or argument that will not do.
    """
    asked: dict[str, _Asked] = {}
    new: set[str] = set()
    for one in requests:
        parts = one.cell.components  # of an experiment file a schedule alone tells that it is meant
        written = [f"scheduler={parts['scheduler'].name}"] if "scheduler" in parts else []
        tested = (one.cell.model, one.cell.data_source) if one.cell.test else ()
        for key, component in [*parts.items(), *zip(_TEST_HOOKS, tested, strict=False)]:
            typed = _first_of(_DECIDED_BY.get(key, ()), [*one.overrides, *written])
            if is_own := component.target == OWN_LOADERS:
                key, component = "own_loaders", one.cell.model
            # Values are not part of it: trials of a sweeper differ in little else. But the batches
            # of a module depend on them.
            arguments = repr(component) if is_own or key == "dataset" else _names(component)
            names = f"{key} {component.target} {arguments} {bool(typed)}"
            if (is_own or not component.target.startswith("scalewise.")) and names not in _sound:
                asked.setdefault(f"{names} {component!r}", (key, component, typed))
                new.add(names)
    if asked:
        _ask(list(asked.values()))
        _sound.update(new)


def _names(component: Component) -> list[str]:
    """Of its arguments, and of the classes that these name."""
    inner = (one for name, value in component.arguments.items() for one in nested(name, value))
    return sorted([*component.arguments, *(f"{at}={group['_target_']}" for at, group in inner)])


def take_own_batches(requests: Iterable[Request]) -> tuple[list[Request], list[str]]:
    """Check own classes, and put in place of ``batch_size`` what a LightningDataModule gives.

    Its batches are per device, as Lightning's are: weak scaling. Returns the requests, and a line
    for each data module. Raises :class:`ConfigError`.
    """
    given = list(requests)
    check_own_code(given)
    taken, lines = [], dict[str, None]()
    for one in given:
        cell, known = one.cell, _batches.get(repr(one.cell.data_source))
        if cell.scheduler is not None:  # one beside a LightningModule was refused by now
            cell.scheduler.check(cell)
        if known is None:
            if cell.strategy.devices != "auto":
                cell.per_device_batch_size(cell.strategy.devices)
            taken.append(one)
            continue
        is_said = "scaling" in (*map(key_of, one.overrides), *one.written)
        # Of a folder to resume others once accepted it.
        if is_said and cell.scaling == "strong" and not cell.sweep.resume:
            found = f"scaling: found strong with {cell.data_source.target}, whose batches are those"
            raise ConfigError(f"{found} of a device; allowed: weak, or an nn.Module and a Dataset")
        plain, (batch, _) = {**one.plain, "scaling": "weak"}, known
        if isinstance(batch, int):
            plain["batch_size"] = batch
        told = f"{batch} samples a device" if isinstance(batch, int) else f"not checked, {batch}"
        lines[f"batch size: given by {cell.data_source.target}: {told} (scaling=weak)"] = None
        taken.append(Request(one.overrides, plain))
    return taken, list(lines)


def _first_of(keys: Sequence[str], overrides: Iterable[str]) -> str:
    """The first override of one of ``keys``, or of what is below it; empty without one."""
    begins = tuple(f"{one}." for one in keys)
    return next((one for one in overrides if f"{key_of(one.lstrip('~'))}.".startswith(begins)), "")


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
    answer = json.loads(done.stdout)
    if answer["error"] is not None:
        raise ConfigError(answer["error"])
    batches = zip(asked, answer["batches"], strict=True)
    _batches.update({repr(one[1]): batch for one, batch in batches if batch is not None})


def _unanswered(asked: Sequence[_Asked], what: str) -> ConfigError:
    keys = ", ".join({f"{key}._target_": "" for key, *_ in asked if key not in _TEST_HOOKS})
    modules = ", ".join(dict.fromkeys(c.target.rpartition(".")[0] for _, c, *_ in asked))
    return ConfigError(
        f"{keys}: importing {modules} {what}; allowed: modules that can be imported without a "
        f"cell; python -X faulthandler -c 'import {modules}' shows where it ends"
    )


def main() -> None:
    """Look at each component of standard input; the first error or null, and batches, as JSON."""
    gc.disable()  # imports alone would have it look through all of torch again and again
    with os.fdopen(os.dup(1), "w") as answer:
        os.dup2(2, 1)  # what the user's modules print is no answer
        asked = [(key, Component(**plain), typed) for key, plain, typed in json.load(sys.stdin)]
        error = next(filter(None, map(_error_of, asked)), None)
        json.dump({"error": error, "batches": [] if error else _own_batches(asked)}, answer)
        answer.flush()
        os._exit(0)  # a thread of the user's would keep it


def _own_batches(asked: Sequence[_Asked]) -> list[_Batch | None]:
    """For each component: None for all but data modules, of which :func:`_own_batch` tells."""

    def too_long(*_: object) -> None:
        raise TimeoutError(f"its loaders took more than {_LOADERS_S:g} s")

    signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, _LOADERS_S, 0.1)  # again for each that is left
    try:
        return [_own_batch(key, component) for key, component, _ in asked]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _own_batch(key: str, component: Component) -> _Batch | None:
    """Of a module's own loader; ``prepare_data`` is left out."""
    target = load_target(key, component)
    if not _makes_batches(key, target):
        return None
    try:
        module = target(**built_arguments(key, component))
        module.setup("fit")
        batch = getattr(module.train_dataloader(), "batch_size", None)
    except (Exception, SystemExit) as error:  # of all but an absent path the ranks will tell
        why = in_one_line(error, at_most=80, with_class=True)
        return why, _absent_path(component, target, error)
    return (batch if isinstance(batch, int) else "its loader does not say"), ""


def _absent_path(component: Component, target: Any, error: BaseException) -> str:
    """The longest argument whose path ``error`` did not find; none that the module may make."""
    made = target.prepare_data.__module__.partition(".")[0] != "pytorch_lightning"
    if made or not isinstance(error, FileNotFoundError) or error.filename is None:
        return ""
    paths = {n: Path(v) for n, v in component.arguments.items() if isinstance(v, str)}
    above = (n for n, path in paths.items() if Path(str(error.filename)).is_relative_to(path))
    vain = [name for name in above if not paths[name].exists()]
    return max(vain, key=lambda name: len(paths[name].parts), default="")


def _error_of(asked: _Asked) -> str | None:
    key, component, *_ = asked
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
    if any(base.__module__.startswith("lightning.") for base in getattr(target, "__mro__", ())):
        raise ConfigError(f"{key}._target_: found {name}, a class of lightning's{OTHER_LIGHTNING}")
    _check_lightning(key, component, target, typed)
    if key == "optimizer":
        check_optimizer(component, target)
    bind(key, component, target, _GIVEN.get(key, ()))
    check_nested(key, component)
    if key in ("model", "own_loaders", *_TEST_HOOKS) and inspect.isclass(target):
        _check_model(key, component, target)
    if key.startswith("callbacks."):
        _check_callback(key, component, target)


_GIVEN = {"optimizer": ("params",), "scheduler": ("optimizer",)}
"""Arguments that a cell itself passes to a class."""


_TEST_HOOKS = ("test_step", "test_dataloader")
"""Methods of Lightning's parts that test, each asked for as a key of its own."""


def _check_model(key: str, component: Component, target: Any) -> None:
    """Refuse a network that says no loss, and what lacks a loader or a test. Raises ConfigError.

    Each may be set where it is built. That costs no memory on torch's ``meta`` device; what
    cannot be built there is left to the ranks.
    """
    torch: Any = sys.modules.get("torch")
    is_lightning = _is_a("LightningModule", target) or _is_a("LightningDataModule", target)
    lead = f"model._target_: found {component.target}, "
    if key == "own_loaders":
        from scalewise.train import without_loader as lacks

        lead = f"dataset: found own_loaders beside model._target_={component.target}, "
    elif key in _TEST_HOOKS and is_lightning:
        from scalewise.train import without_test

        lacks, lead = partial(without_test, key, component.target), ""
    elif torch is None or key != "model" or not issubclass(target, torch.nn.Module) or is_lightning:
        return
    else:
        from scalewise.models import without_loss as lacks
    if (why := lacks(target)) is not None and (key == "model" or is_lightning):
        try:
            with torch.device("meta"):
                why = lacks(target(**built_arguments("model", component)))
        except Exception:  # whatever it raises there, a rank may build it all the same
            return
    if why is not None:
        raise ConfigError(f"{lead}{why}")


def _check_callback(key: str, component: Component, target: Any) -> None:
    """Refuse what no Trainer can call, and values that Lightning's own callbacks refuse."""
    if inspect.isclass(target) and not hasattr(target, "on_train_batch_end"):
        raise ConfigError(
            f"{key}._target_: found {component.target}, which is no callback; allowed: a class "
            "derived from pytorch_lightning.Callback, or a function that builds one"
        )
    if getattr(target, "__module__", "").startswith("pytorch_lightning."):
        try:
            target(**built_arguments(key, component))
        except Exception as error:
            raise ConfigError(f"{key}: {in_one_line(error)}") from error


def _check_lightning(key: str, component: Component, target: Any, typed: str) -> None:
    if typed and key == "model" and _is_a("LightningModule", target):
        name, _, value = typed.lstrip("+~").partition("=")
        group, _, argument = name.partition(".")
        own = f"model.{group}._target_=VALUE" if group in component.arguments else "model.KEY=VALUE"
        if argument in inspect.signature(target).parameters:
            own = f"model.{argument}={value}"
        raise ConfigError(
            f"{group}: found {typed} beside model._target_={component.target}, a LightningModule,"
            f" which builds its own; allowed: nothing of {group}; leave it out, or give the class "
            f"an argument for it: {own}"
        )
    if typed and _makes_batches(key, target):
        name, _, value = typed.lstrip("+").partition("=")
        name, group = name.rpartition(".")[2], "dataset" if key == "dataset" else "model"
        own = f"{group}.{name}" if name in component.arguments else f"+{group}.{name}"
        raise ConfigError(
            f"{typed.partition('=')[0]}: found {value} beside {group}._target_={component.target}, "
            "which makes its own batches; allowed: leave it out, or give the class an argument for "
            f"it: {own}={value}"
        )


def _makes_batches(key: str, target: Any) -> bool:
    """Whether it is a LightningDataModule, or a model whose own loaders were asked for."""
    return key == "own_loaders" or (key == "dataset" and _is_a("LightningDataModule", target))


def _is_a(base: str, target: Any) -> bool:
    """Whether it is a class of Lightning's: none was made without importing that."""
    known = getattr(sys.modules.get("pytorch_lightning"), base, None)
    return inspect.isclass(target) and known is not None and issubclass(target, known)


class ThisHost:
    """The devices of this host for each profile that a sweep asks for, each looked for once."""

    def __init__(self) -> None:
        self._found: dict[str, Host | HostMismatch] = {}

    def __call__(self, cell: Cell) -> int | None:
        """Devices that a cell would get; None where only the host that runs it will tell.

        Raises HostMismatch where it cannot run.
        """
        return devices_for(cell.request, self.of(cell.request.cell.hardware))

    def of(self, hardware: HardwareConfig) -> Host:
        """Raises HostMismatch where the profile asks for what is not there."""
        key = repr(hardware)
        if key not in self._found:
            try:
                self._found[key] = discover(hardware)
            except HostMismatch as mismatch:
                self._found[key] = mismatch
        found = self._found[key]
        if isinstance(found, HostMismatch):
            raise found
        return found

    def devices_of(self, hardware: HardwareConfig) -> int | None:
        """Devices that a profile has here; None where it has none."""
        try:
            return len(self.of(hardware).slots)
        except HostMismatch:
            return None

    def models_of(self, hardware: HardwareConfig) -> str:
        """Models of a profile's devices here. Raises HostMismatch where it has none."""
        return ", ".join(sorted({slot.name for slot in self.of(hardware).slots}))

    def models(self) -> set[str]:
        """Models of the devices of the profiles asked about so far."""
        return {slot.name for host in self._known() for slot in host.slots}

    def slots(self) -> int | None:
        """The most devices that any of these profiles has; None before one was found."""
        return max((len(host.slots) for host in self._known()), default=None)

    def _known(self) -> list[Host]:
        return [host for host in self._found.values() if isinstance(host, Host)]


class Cluster(ThisHost):
    """Where cells would run on a cluster that nobody has asked yet: what they ask for."""

    def devices_of(self, hardware: HardwareConfig) -> int | None:
        return None

    def __call__(self, cell: Cell) -> int | None:
        return cell.planned.devices


if __name__ == "__main__":
    main()
