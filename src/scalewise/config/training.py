"""What acts on training beside model, data and optimizer: callbacks, a schedule, the Trainer."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from pydantic import PositiveInt

from scalewise.config.components import Component, component_of, option_of, options_of
from scalewise.config.errors import ConfigError, refuse_as, require
from scalewise.records import build, closest, nearest, words_beside

if TYPE_CHECKING:
    from scalewise.config.cell import CellConfig

Mode: TypeAlias = Literal["min", "max"]
Validation: TypeAlias = Literal["end", "epoch", "never"]

_NAMES = words_beside(__file__, dict[str, Any])
_MODES: Mapping[str, Mode] = {w: mode for mode, words in _NAMES["metrics"].items() for w in words}
PASSED: tuple[str, ...] = tuple(_NAMES["trainer"]["passed"])
"""Arguments of Lightning's Trainer that a cell hands on."""
INSTEAD: Mapping[str, str] = _NAMES["trainer"]["instead"]
"""Those that a cell decides with a key of its own: what to type instead."""
_VALIDATES = ("check_val_every_n_epoch", "val_check_interval")
"""Those that mean something only where a run is scored while it trains."""


def known_mode(metric: str) -> Mode | None:
    """Whether the better value of a metric is the smaller one, by its name; None where unknown.

    The last known word counts: ``val/acc_best`` goes up, and so does ``global_samples_per_s``.
    """
    if metric.endswith("_per_s"):
        return "max"
    for word in reversed(re.split(r"[^a-z0-9]+", metric.lower())):
        if word in _MODES:
            return _MODES[word]
    return None


def of_validation(metric: str) -> bool:
    """Whether a metric is one of validation by its name: ``val_loss``, ``val/acc``, ``valid-f1``"""
    return re.match(r"val(id(ation)?)?([^a-z0-9]|$)", metric, re.IGNORECASE) is not None


def no_mode(metric: str) -> str:
    """Why the better value of a metric is not known, with a like name that tells; else empty."""
    if known_mode(metric):
        return ""
    last = re.split(r"[^a-z0-9]+", metric.lower())[-1]
    near = nearest(last, [word for word in _MODES if word.startswith(last)] or list(_MODES))
    guess = closest(metric, [metric[: len(metric) - len(last)] + near] if near else [])
    return f"the name {metric}{guess} does not tell which value is the better one"


def _refuse_misspelt(key: str, given: Iterable[str], right: str) -> None:
    """What is refused under the name ``right`` may have been typed, under a name much like it."""
    for name in given:
        if name != right and (guess := closest(name, [right])):
            raise ConfigError(f"{key}.{name}: unknown key{guess}")


def check_monitor(
    key: str, metric: object, cell: CellConfig, no_data: str = "", given: Iterable[str] = ()
) -> None:
    """Refuse to watch a metric that nobody logs while training goes on. Raises ConfigError.

    ``no_data`` says why nothing is there to score; empty where something is, or may be. ``given``
    are arguments of what watches it.
    """
    if isinstance(metric, str) and of_validation(metric) and (cell.unscored() or no_data):
        _refuse_misspelt(key, given, "monitor")
        why = f", but {no_data}, or a metric of training" if no_data else f" with {cell.unscored()}"
        raise ConfigError(f"{key}.monitor: found {metric}{why}")


def with_mode(key: str, component: Component, metric: object) -> Component:
    """``component`` with the ``mode`` of the ``metric`` it monitors, where its name is to tell.

    Raises :class:`ConfigError` for a name that does not.
    """
    arguments = dict(component.arguments)
    if arguments.get("mode", "") is not None:
        return component
    if metric is None:  # nothing is compared, and the class takes no null
        del arguments["mode"]
    elif isinstance(metric, str):
        known = known_mode(metric)
        if known is None:
            _refuse_misspelt(key, arguments, "mode")
            raise ConfigError(f"{key}.mode: found null, and {no_mode(metric)}; allowed: min or max")
        arguments["mode"] = known
    return replace(component, arguments=arguments)


def callbacks_of(group: object) -> dict[str, Component]:
    """The callbacks of a cell by name. Raises :class:`ConfigError`."""
    if not isinstance(group, Mapping):
        raise ConfigError(f"callbacks: found {group!r}; allowed: options of the group 'callbacks'")
    return {
        str(name): _callback(f"callbacks.{name}", one)
        for name, one in group.items()
        if one is not None  # a file of the user's takes away what its defaults have
    }


def _with_class(key: str, group: object, option: str = "") -> Mapping[str, Any]:
    if not isinstance(group, Mapping) or "_target_" not in group:
        raise ConfigError(
            f"{key}: found {group!r} without a class; allowed: "
            f"{option or _option_beside(key, group)}, or {key}._target_=package.module.Class"
        )
    return group


def _callback(key: str, group: object) -> Component:
    component = component_of(key, _with_class(key, group))
    is_needless(key, component.target)  # refuses those that change what is trained
    return with_mode(key, component, component.arguments.get("monitor"))


def _option_beside(key: str, group: object) -> str:
    """The option that ``key`` means, and a key of it that one in ``group`` means."""
    option = nearest(key.rpartition(".")[2], options_of("callbacks"))
    if not option or not isinstance(group, Mapping):
        return "callbacks=NAME of an option"
    known = list(option_of("callbacks", option).get(option, ()))
    guesses = (closest(str(name), known) for name in group if name not in known)
    return f"callbacks={option} beside it{next(filter(None, guesses), '')}"


def is_needless(key: str, target: str) -> bool:
    """Whether a cell does the work of this class of Lightning's.

    Raises :class:`ConfigError` for one that would change what a cell trains.
    """
    package, _, path = target.partition(".")
    name = path.rpartition(".")[2] if package in ("pytorch_lightning", "lightning") else ""
    if instead := _NAMES["callbacks"]["instead"].get(name):
        raise ConfigError(f"{key}: found {target}; allowed: {instead}")
    return name in _NAMES["callbacks"]["needless"]


_NOT_ARGUMENTS = ("interval", "frequency", "monitor")


@dataclass(frozen=True)
class SchedulerConfig:
    """The config group ``scheduler``: a schedule of learning rates, and when it goes on."""

    component: Component
    interval: Literal["step", "epoch"] = "epoch"
    """Between two steps of the schedule."""
    frequency: PositiveInt = 1
    """Intervals between two."""
    monitor: str | None = None
    """The metric that a schedule like ``ReduceLROnPlateau`` looks at."""

    @property
    def of_whole_run(self) -> str | None:
        """The argument that is to be the length of the run; None where there is none."""
        given = self.component.arguments
        return next((name for name in WHOLE_RUN if given.get(name, 0) is None), None)

    @refuse_as()
    def check(self, cell: CellConfig) -> None:
        """Refuse what waits for something that does not happen in ``cell``. Raises ConfigError."""
        check_monitor("scheduler", self.monitor, cell, given=self.component.arguments)
        require(
            f"scheduler.{self.of_whole_run}", None, cell.is_counted or self.of_whole_run is None,
            "a number of steps, or say how long the run is: max_steps=N or max_epochs=N",
        )  # fmt: skip
        # A captured step has the learning rate of its capture.
        captures, execution = cell.execution.kind == "cudagraph", f"execution={cell.execution.name}"
        require("scheduler", "a schedule", not captures, "execution=eager or compile", execution)

    def component_for(self, length: int) -> Component:
        """The component for a run of so many steps, or epochs, of the schedule."""
        whole = self.of_whole_run
        arguments = {**self.component.arguments, **({} if whole is None else {whole: length})}
        return replace(self.component, arguments=arguments)


WHOLE_RUN = ("T_max", "total_steps", "total_iters")
"""Arguments of torch's schedules that count the steps of a whole run; null is this run's."""


def scheduler_of(group: object) -> SchedulerConfig | None:
    """The schedule of a cell, None for none. Raises :class:`ConfigError`, :class:`DataError`."""
    if not group:
        return None
    group = _with_class("scheduler", group, "scheduler=cosine or another option")
    own = {key: value for key, value in group.items() if key not in _NOT_ARGUMENTS}
    # Its mode is that of the metric, which is no argument of its class.
    component = with_mode("scheduler", component_of("scheduler", own), group.get("monitor"))
    settings = {key: group[key] for key in _NOT_ARGUMENTS if key in group}
    return build(SchedulerConfig, {**settings, "component": component}, "scheduler")


NO_TEST = "test: found true, but {}; allowed: false, or what has one"


def trainer_arguments(given: object) -> dict[str, Any]:
    """Arguments for Lightning's Trainer, as they are. Raises :class:`ConfigError`."""
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"trainer: found {given!r}; allowed: trainer.KEY=VALUE; devices=N, strategy=NAME and "
            "hardware=cpu say where a cell trains"
        )
    for name, value in given.items():
        # Misspelt too: what a cell decides is refused as well where it is spelt rightly.
        near = nearest(name, [*PASSED, *INSTEAD])
        unknown = f"unknown key{closest(name, [near])}"
        if key := INSTEAD.get(near):
            found = f"found {value}" if name == near else unknown
            raise ConfigError(f"trainer.{name}: {found}, which a cell decides; allowed: {key}")
        if name not in PASSED and name != "_target_":
            raise ConfigError(f"trainer.{name}: {unknown}; allowed: {', '.join(PASSED)}")
    return {str(name): value for name, value in given.items() if name != "_target_"}


def explain(error: Exception) -> str:
    """What of a user's code to change for a cell, where that is known of ``error``; else empty."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    words = f"{error} {last.line}"
    found = (why for known, why in _NAMES["errors"].items() if re.search(known, words))
    return str(next(found, "")).format(at=f"{last.filename}:{last.lineno}")


def check_training(cell: CellConfig) -> None:
    """Refuse what waits for something that does not happen in ``cell``. Raises ConfigError."""
    for name, callback in cell.callbacks.items():
        arguments, execution = callback.arguments, f"execution={cell.execution.name}"
        # Nobody acts inside a captured step.
        runs = cell.execution.kind != "cudagraph" or is_needless(name, callback.target)
        require("callbacks", name, runs, "execution=eager or compile", execution)
        check_monitor(f"callbacks.{name}", arguments.get("monitor"), cell, given=arguments)
        path = arguments.get("dirpath")
        require(
            f"callbacks.{name}.dirpath", path, not (isinstance(path, str) and path[:1] in "/~"),
            "a path below callbacks/ in the folder of each cell, or null",
        )  # fmt: skip
    if cell.scheduler is not None and cell.model.target.startswith("scalewise."):
        cell.scheduler.check(cell)
    for name in _VALIDATES:
        during = cell.validation == "epoch" or name not in cell.trainer
        require(f"trainer.{name}", cell.trainer.get(name), during, "validation=epoch",
                f"validation={cell.validation}")  # fmt: skip
