"""The composed configuration as frozen dataclasses: the only reader of Hydra's ``DictConfig``.

Everything a user can type wrong ends here, as one line that names the key, what was found and
what is allowed, before any process starts, with exit status 2. What depends on the host that
runs a cell (how many GPUs, which model) is checked there, by ``sweep.lease``.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import inspect
import json
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from scalewise.datasets.loader import LoaderConfig
from scalewise.faults import NO_FAULT, FaultConfig
from scalewise.hardware import HardwareConfig
from scalewise.tracking.config import TrackingConfig
from scalewise.train.execution import ExecutionConfig
from scalewise.train.precision import PrecisionConfig
from scalewise.train.strategy import StrategyConfig
from scalewise.typed import DataError, build, closest, convert, to_plain

if TYPE_CHECKING:
    from omegaconf import DictConfig

EXIT_CONFIG_ERROR = 2
FEWEST_ADAPTIVE_REPEATS = 3
"""Runs of ``repeats=auto`` before the data are looked at: fewer have no interval worth the name."""


class ConfigError(ValueError):
    """Wrong input: one line with the key, what was found and what is allowed."""


@dataclass(frozen=True)
class Component:
    """A class to build with keyword arguments: ``_target_``, ``name`` and the rest."""

    target: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class MonitorConfig:
    """The key ``monitor``: what is sampled beside training."""

    devices: bool = True
    """Sample GPUs or, on a host without any, the ranks' processes."""
    interval_s: float = 1.0
    """Seconds between two samples."""

    def __post_init__(self) -> None:
        if not 0.1 <= self.interval_s <= 60:
            raise ValueError(f"interval_s: found {self.interval_s}; allowed: 0.1 to 60 seconds")


@dataclass(frozen=True)
class SweepConfig:
    """The key ``sweep``: how cells are run. It never changes what a cell's result is."""

    resume: str | None = None
    """Folder of a sweep to finish."""
    order_seed: int = 0
    """Seed of the shuffle of cells and repeats."""
    objective: str = "val_loss"
    """The metric a cell returns to Hydra's sweeper, or ``global_samples_per_s``."""
    timeout_s: float | None = None
    """Wall time after which a cell is ended; None for no limit."""
    hang_timeout_s: float = 600.0
    """Time without a step after which a cell counts as hung."""
    grace_s: float = 5.0
    """Time between SIGTERM and SIGKILL."""
    dry_run: bool = False
    """Print what would run, and run nothing."""
    rerun: str | None = None
    """With ``resume``: run only ``failed`` cells, ``all`` again, or those whose name matches."""
    extend: int = 0
    """With ``resume``: repeats to add to those that the folder has of each configuration."""
    allow_mixed: bool = False
    """With ``resume``: add results of other code or other devices than those already there."""

    def __post_init__(self) -> None:
        if self.timeout_s is not None and self.timeout_s <= 0:
            raise ValueError(f"timeout_s: found {self.timeout_s}; allowed: above 0, or null")
        if self.hang_timeout_s <= 0:
            raise ValueError(f"hang_timeout_s: found {self.hang_timeout_s}; allowed: above 0")
        if not 0 <= self.grace_s <= 8:
            raise ValueError(f"grace_s: found {self.grace_s}; allowed: 0 to 8 seconds")
        if self.extend < 0:
            raise ValueError(f"extend: found {self.extend}; allowed: 0 or more")


@dataclass(frozen=True)
class CellConfig:
    """One cell: everything its processes need to know."""

    model: Component
    dataset: Component
    loader: LoaderConfig
    optimizer: Component
    strategy: StrategyConfig
    hardware: HardwareConfig
    precision: PrecisionConfig
    execution: ExecutionConfig
    tracking: TrackingConfig
    batch_size: int
    scaling: Literal["strong", "weak"]
    max_steps: int | None
    max_epochs: int | None
    warmup_steps: int
    repeats: int | Literal["auto"]
    seed: int
    deterministic: bool
    validation: Literal["end", "epoch", "never"]
    log_every_n_steps: int
    gradient_clip_norm: float | None
    monitor: MonitorConfig
    sweep: SweepConfig
    precision_percent: float = 2.0
    max_repeats: int = 50
    fault: FaultConfig = NO_FAULT
    allow_faults: bool = False

    def __post_init__(self) -> None:
        _at_least("batch_size", self.batch_size, 1)
        if self.repeats != "auto":
            _at_least("repeats", self.repeats, 1)
        _at_least("max_repeats", self.max_repeats, FEWEST_ADAPTIVE_REPEATS)
        if not 0 < self.precision_percent <= 100:
            raise ValueError(
                f"precision_percent: found {self.precision_percent}; allowed: above 0, up to 100"
            )
        if self.fault.kind != "none" and not self.allow_faults:
            raise ValueError(
                f"fault: found {self.fault.name!r}, which spoils the run on purpose; allowed: "
                "none, or set allow_faults=true"
            )
        _at_least("warmup_steps", self.warmup_steps, 0)
        _at_least("log_every_n_steps", self.log_every_n_steps, 1)
        _at_least("seed", self.seed, 0)
        if self.max_steps is None and self.max_epochs is None:
            raise ValueError("max_steps: found null, and max_epochs is null too; give one of them")
        if self.max_epochs is not None:
            _at_least("max_epochs", self.max_epochs, 1)
        if self.max_steps is not None and self.max_steps <= self.warmup_steps:
            raise ValueError(
                f"max_steps: found {self.max_steps} with warmup_steps={self.warmup_steps}; "
                f"allowed: {self.warmup_steps + 1} or more, so that a step is left to time"
            )
        if self.gradient_clip_norm is not None and self.gradient_clip_norm <= 0:
            raise ValueError(
                f"gradient_clip_norm: found {self.gradient_clip_norm}; allowed: above 0, or null"
            )
        if self.strategy.devices != "auto":
            self.per_device_batch_size(self.strategy.devices)

    def per_device_batch_size(self, devices: int) -> int:
        """Samples each device takes a step. Raises ConfigError where they cannot be shared."""
        if self.scaling == "weak":
            return self.batch_size
        if self.batch_size % devices:
            below = self.batch_size - self.batch_size % devices
            nearest = [str(b) for b in (below, below + devices) if b > 0]
            raise ConfigError(
                f"batch_size: found {self.batch_size} on {devices} devices with scaling=strong; "
                f"allowed: a multiple of {devices} (nearest: {' or '.join(nearest)})"
            )
        return self.batch_size // devices

    def global_batch_size(self, devices: int) -> int:
        """Samples all devices take together a step."""
        return self.per_device_batch_size(devices) * devices


def _at_least(key: str, value: int, minimum: int) -> None:
    if value < minimum:
        raise ValueError(f"{key}: found {value}; allowed: {minimum} or more")


def resolve(composed: DictConfig) -> dict[str, Any]:
    """Hydra's composed configuration as plain data, interpolations resolved, without ``hydra``."""
    from omegaconf.errors import OmegaConfBaseException

    try:
        # One key at a time: the node `hydra` may hold values that are missing on purpose.
        plain = {str(key): _plain_value(composed, str(key)) for key in composed if key != "hydra"}
    except OmegaConfBaseException as error:
        raise ConfigError(" ".join(str(error).split())) from error
    return plain


def _plain_value(composed: DictConfig, key: str) -> Any:
    from omegaconf import OmegaConf

    value = composed[key]
    if not OmegaConf.is_config(value):
        return value
    return OmegaConf.to_container(value, resolve=True, throw_on_missing=True)


def without_absent_fault(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the keys of planted faults where none is: a clean run's record and id know of none."""
    fault = plain.get("fault")
    if isinstance(fault, Mapping) and fault.get("kind", "none") == "none":
        return {k: v for k, v in plain.items() if k not in ("fault", "allow_faults")}
    return dict(plain)


def build_cell(plain: Mapping[str, Any]) -> CellConfig:
    """The typed configuration of a cell. Raises :class:`ConfigError`."""
    data = {k: v for k, v in plain.items() if k != "experiment"}
    if "loader" in data:
        raise ConfigError("loader: unknown key; the loader's settings are dataset.loader.*")
    try:
        dataset = dict(_group(data, "dataset"))
        data["loader"] = dataset.pop("loader", {})
        for key, group in (
            ("model", _group(data, "model")),
            ("dataset", dataset),
            ("optimizer", _group(data, "optimizer")),
        ):
            data[key] = _component(key, group)
        return build(CellConfig, {k: _shared(k, v) for k, v in data.items()})
    except ConfigError:
        raise
    except DataError as error:
        # The loader is typed under `dataset.loader`, where it stands in the YAML.
        text = str(error)
        raise ConfigError(f"dataset.{text}" if text.startswith("loader") else text) from error


def _shared(key: str, value: Any) -> Any:
    """``value`` as its dataclass, built once for all cells of a sweep that have the same one."""
    cls = _field_types().get(key)
    if not isinstance(value, Mapping) or not isinstance(cls, type):
        return value
    known = f"{key} {value!r}"
    if known not in _built:
        _built[known] = build(cls, value, key)
    return _built[known]


_built: dict[str, Any] = {}


@functools.cache
def _field_types() -> dict[str, Any]:
    return typing.get_type_hints(CellConfig)


def _group(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    group = data.get(key)
    if not isinstance(group, Mapping):
        raise ConfigError(f"{key}: found {group!r}; allowed: an option of the group {key!r}")
    return group


_NOT_ARGUMENTS = ("_target_", "name", "takes", "gives")
"""What stands beside a component's arguments: its class, its name, and what batches it knows."""


def _component(key: str, group: Mapping[str, Any]) -> Component:
    arguments = {str(k): v for k, v in group.items() if k not in _NOT_ARGUMENTS}
    target = group.get("_target_")
    if not isinstance(target, str) or "." not in target:
        raise ConfigError(
            f"{key}._target_: found {target!r}; allowed: a class as package.module.Class"
        )
    name = group.get("name") or target.rpartition(".")[2]
    return Component(target, str(name), arguments)


def check_module(key: str, component: Component) -> None:
    """Look for the module of a component without importing it. Raises :class:`ConfigError`.

    A user's class is imported only where the cell runs: this process stays free of whatever the
    import does.
    """
    module_name = component.target.rpartition(".")[0]
    try:
        found = importlib.util.find_spec(module_name) is not None
    except (ImportError, ValueError):
        found = False
    if not found:
        raise ConfigError(
            f"{key}._target_: found {component.target!r}, but there is no module {module_name!r}; "
            "allowed: an importable class (is its folder on PYTHONPATH?)"
        )


def load_target(key: str, component: Component) -> Any:
    """Import the class a component names. Raises :class:`ConfigError`."""
    module_name, _, class_name = component.target.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{key}._target_: found {component.target!r}; importing {module_name} failed: {error}"
        ) from error
    if not hasattr(module, class_name):
        public = [n for n in vars(module) if n[0].isupper()]
        raise ConfigError(
            f"{key}._target_: found {component.target!r}; {module_name} has no {class_name!r}"
            f"{closest(class_name, public)}; allowed: {', '.join(public) or 'nothing public'}"
        )
    return getattr(module, class_name)


def bind(key: str, component: Component, target: Any, given: tuple[str, ...] = ()) -> None:
    """Check names and types of a component's arguments against ``target``'s signature.

    ``given`` are parameters that the caller passes itself. Raises :class:`ConfigError`.
    """
    parameters = inspect.signature(target).parameters
    init = target.__init__ if inspect.isclass(target) else target
    hints = _hints(init)
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    named = {
        n: p
        for n, p in parameters.items()
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and n not in given
    }
    for name, value in component.arguments.items():
        if name in named:
            if name in hints:
                try:
                    convert(hints[name], value, f"{key}.{name}")
                except DataError as error:
                    raise ConfigError(str(error)) from error
        elif not open_ended:
            raise ConfigError(
                f"{key}.{name}: unknown key{closest(name, list(named))}; "
                f"allowed: {', '.join(named)}"
            )
    for name, parameter in named.items():
        if parameter.default is parameter.empty and name not in component.arguments:
            raise ConfigError(f"{key}.{name}: missing; {component.target} needs it")


def _hints(init: Any) -> dict[str, Any]:
    """The parameters' types; none where an annotation names what only a type checker imports."""
    try:
        return typing.get_type_hints(init) if hasattr(init, "__annotations__") else {}
    except NameError:
        return {}


def instantiate(key: str, component: Component, **given: Any) -> Any:
    """Build a component. Raises :class:`ConfigError` for whatever it refuses with ValueError."""
    target = load_target(key, component)
    bind(key, component, target, tuple(given))
    try:
        return target(**component.arguments, **given)
    except ValueError as error:
        raise ConfigError(f"{key}.{error}") from error


def keep_own_arguments(plain: dict[str, Any], typed: Sequence[str]) -> dict[str, Any]:
    """Drop what a group's option gave to the class it was for, where the user typed another.

    ``typed`` are the user's overrides. ``model._target_=mine.Net model.width=8`` builds
    ``mine.Net(width=8)``, whatever the option's own class takes.
    """
    keys = {override.partition("=")[0].lstrip("+") for override in typed}
    kept = dict(plain)
    for group in ("model", "dataset", "optimizer"):
        if f"{group}._target_" in keys:
            own = {k.split(".")[1] for k in keys if k.startswith(f"{group}.")} | {"loader"}
            kept[group] = {k: v for k, v in kept[group].items() if k in own}
    return kept


_DOES_NOT_MATTER = (
    "sweep", "tracking", "monitor", "repeats", "precision_percent", "max_repeats",
)  # fmt: skip
"""Keys that say how a cell is run and watched, not what comes out of it."""


def config_id(plain: Mapping[str, Any]) -> str:
    """Hash of what determines a cell's result: repeats of one configuration share it."""
    relevant = {k: v for k, v in plain.items() if k not in _DOES_NOT_MATTER}
    text = json.dumps(relevant, sort_keys=True, separators=(",", ":"), default=to_plain)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def cell_id(plain: Mapping[str, Any], repeat: int) -> str:
    """Hash of what determines one run: :func:`config_id` and the number of the repeat."""
    return repeat_id(config_id(plain), repeat)


def repeat_id(configuration: str, repeat: int) -> str:
    """:func:`cell_id` from a :func:`config_id`."""
    return hashlib.sha256(f"{configuration}/{repeat}".encode()).hexdigest()[:12]
