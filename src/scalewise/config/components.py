"""The classes that a configuration names: checked, imported, and built with its arguments."""

from __future__ import annotations

import functools
import importlib
import importlib.resources
import inspect
import pkgutil
import re
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Annotated, Any

import yaml
from pydantic import Field, JsonValue, PydanticUserError
from pydantic_core import SchemaError

from scalewise.config.errors import ConfigError, refuse_as
from scalewise.config.script import key_of
from scalewise.records import DataError, build, closest, convert, words_beside

BelowOne = Annotated[float, Field(ge=0, lt=1)]
"""A share that is not the whole."""
OWN_LOADERS = "scalewise.train.data.OwnLoaders"
"""Named as data set where a LightningModule brings the loaders itself."""
MOST_IN_NAME = 80
"""Letters: the names of model, data set and strategy become that of a folder."""


@dataclass(frozen=True)
class Component:
    """A class to build with keyword arguments: ``_target_``, ``name`` and the rest."""

    target: str
    name: Annotated[str, Field(max_length=MOST_IN_NAME)]
    arguments: Mapping[str, Any]
    recursive: bool = True
    """Whether classes that its arguments name are built for it; Hydra's ``_recursive_``."""


_OF_HYDRA = ("_target_", "_partial_", "_args_", "_convert_", "_recursive_")
_NOT_ARGUMENTS = (*_OF_HYDRA, "name", "takes", "gives")
"""Keys beside a component's arguments: its class, its name, and the batches that it knows."""


def component_of(key: str, group: Mapping[str, Any]) -> Component:
    """The component that the config group ``key`` describes. Raises :class:`ConfigError`."""
    arguments = {str(k): v for k, v in group.items() if k not in _NOT_ARGUMENTS}
    target = group.get("_target_")
    if not isinstance(target, str) or "." not in target or ":" in target:
        raise ConfigError(
            f"{key}._target_: found {target!r}; allowed: a class as package.module.Class"
        )
    if target.startswith("scalewise."):  # a user's own class may take inf
        convert(Mapping[str, JsonValue], arguments, key)
    name = group.get("name") or target.rpartition(".")[2]
    plain = {"target": target, "name": str(name), "arguments": arguments}
    return build(Component, {**plain, "recursive": group.get("_recursive_", True)}, key)


_MOVED = words_beside(__file__, dict[str, str])
"""Modules whose components lie elsewhere now: a ``_target_`` keeps its name, a cell its id."""


OTHER_LIGHTNING = "; allowed: import pytorch_lightning as L, which has the same classes"
"""What to write in place of the package lightning, whose classes are others to Python."""
_IMPORTABLE = "; allowed: an importable class (is its folder on PYTHONPATH?)"


def module_of(target: str) -> str:
    """The module in which the class ``target`` lies now.

    Lightning has two names, and is installed here under the shorter one.
    """
    module = re.sub(r"^lightning\.pytorch\b", "pytorch_lightning", target.rpartition(".")[0])
    return _MOVED.get(module, module)


def load_target(key: str, component: Component) -> Any:
    """Import the class a component names. Raises :class:`ConfigError`."""
    module_name, class_name = module_of(component.target), component.target.rpartition(".")[2]
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        is_other = (error.name or "").partition(".")[0] == "lightning"
        raise ConfigError(
            f"{key}._target_: found {component.target!r}; importing {module_name} failed: {error}"
            f"{OTHER_LIGHTNING if is_other else _IMPORTABLE}"
        ) from error
    if not hasattr(module, class_name):
        public = [
            name
            for name, value in vars(module).items()
            if name[0].isupper() or (inspect.isfunction(value) and value.__module__ == module_name)
        ]
        raise ConfigError(
            f"{key}._target_: found {component.target!r}; {module_name} has no {class_name!r}"
            f"{closest(class_name, public)}; allowed: {', '.join(public) or 'nothing public'}"
        )
    return getattr(module, class_name)


def nested(key: str, value: object) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The classes that an argument names itself, each with its key."""
    if isinstance(value, Mapping):
        if isinstance(value.get("_target_"), str):
            yield key, value
        for name, inner in value.items():
            yield from nested(f"{key}.{name}", inner)
    elif isinstance(value, (list, tuple)):
        for place, inner in enumerate(value):
            yield from nested(f"{key}[{place}]", inner)


_RECORDED_OTHERWISE = ("scalewise.", "torch.", "pytorch_lightning.", "lightning.pytorch.")
"""Classes whose state a hash or a version tells."""


def own_classes(plain: Mapping[str, Any]) -> tuple[str, ...]:
    """The classes of the user's own that a cell's resolved configuration names."""
    named = {str(group["_target_"]) for _, group in nested("", plain)}
    return tuple(sorted(t for t in named if "." in t and not t.startswith(_RECORDED_OTHERWISE)))


def built_arguments(key: str, component: Component) -> dict[str, Any]:
    """Its arguments; those that name classes are built, or partials of them, as Hydra does it.

    Raises :class:`ConfigError` for a class that is not there.
    """
    given = component.arguments
    if not component.recursive:
        return dict(given)
    return {name: _built(f"{key}.{name}", value) for name, value in given.items()}


def _built(key: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        whole = value.get("_recursive_", True)
        inner = {n: _built(f"{key}.{n}", one) if whole else one for n, one in value.items()}
        if not isinstance(inner.get("_target_"), str):
            return inner
        target, given = _found(key, inner["_target_"]), inner.get("_args_", ())
        named = {name: one for name, one in inner.items() if name not in _OF_HYDRA}
        partial = functools.partial(target, *given, **named)
        return partial if inner.get("_partial_") else partial()
    if isinstance(value, (list, tuple)):
        return [_built(f"{key}[{place}]", one) for place, one in enumerate(value)]
    return value


def _found(key: str, target: str) -> Any:
    """What a dotted name stands for: a class, a function, or a method of a class."""
    try:
        return pkgutil.resolve_name(f"{module_of(target)}.{target.rpartition('.')[2]}")
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{key}._target_: found {target!r}; {error}") from error


def check_nested(key: str, component: Component) -> None:
    """Import the classes that arguments name, and check what these get. Raises ConfigError."""
    for name, value in component.arguments.items() if component.recursive else ():
        for at, group in nested(f"{key}.{name}", value):
            target = _found(at, group["_target_"])
            # What is written in C has no signature.
            if isinstance(target, type | FunctionType) and "_args_" not in group:
                named = {name: one for name, one in group.items() if name not in _OF_HYDRA}
                inner = Component(group["_target_"], at, named)
                bind(at, inner, target, is_partial=bool(group.get("_partial_")))


def bind(
    key: str,
    component: Component,
    target: Any,
    given: tuple[str, ...] = (),
    *,
    is_partial: bool = False,
) -> None:
    """Check names and types of a component's arguments against ``target``'s signature.

    ``given`` are parameters that the caller passes itself; a partial gets some of them later.
    Raises :class:`ConfigError`.
    """
    parameters = _parameters(key, component, target)
    hints = _hints(target.__init__ if inspect.isclass(target) else target)
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    named = {
        n: p
        for n, p in parameters.items()
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and n not in given
    }
    for name, value in component.arguments.items():
        if name in named:
            if name in hints and next(nested("", value), None) is None:
                try:
                    convert(hints[name], value, f"{key}.{name}")
                except DataError as error:
                    raise ConfigError(str(error)) from error
                except (PydanticUserError, SchemaError, TypeError):
                    continue  # an annotation that only a type checker understands
        elif not open_ended:
            raise ConfigError(
                f"{key}.{name}: unknown key{closest(name, list(named))}; "
                f"allowed: {', '.join(named) or 'none'}"
            )
    for name, parameter in named.items() if not is_partial else ():
        if parameter.default is parameter.empty and name not in component.arguments:
            raise ConfigError(f"{key}.{name}: missing; {component.target} needs it")


def _parameters(key: str, component: Component, target: Any) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(target).parameters
    except (TypeError, ValueError):
        raise ConfigError(
            f"{key}._target_: found {component.target}, whose arguments cannot be read; allowed: a "
            "class or function written in Python"
        ) from None


def _hints(init: Any) -> dict[str, Any]:
    """The parameters' types; none where an annotation names what only a type checker imports."""
    if not hasattr(init, "__annotations__"):
        return {}
    try:
        return typing.get_type_hints(init, include_extras=True)
    except NameError:
        return {}


def check_optimizer(component: Component, target: Any) -> None:
    """Whether ``target`` can be called with parameters to optimize. Raises ConfigError."""
    parameters = _parameters("optimizer", component, target)
    if "params" not in parameters and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        raise ConfigError(
            f"optimizer._target_: found {component.target}, which takes no params; allowed: a "
            "torch optimizer, or a function of params that builds one"
        )


def instantiate(key: str, component: Component, **given: Any) -> Any:
    """Build a component with its arguments and ``given``.

    The annotations of its parameters say what values they take (``Annotated[int, Field(ge=2)]``).
    Raises :class:`ConfigError` for others, and for whatever it refuses with ValueError.
    """
    target = load_target(key, component)
    if key == "optimizer":
        check_optimizer(component, target)
    bind(key, component, target, tuple(given))
    arguments = built_arguments(key, component)
    with refuse_as(key):
        return target(**arguments, **given)


def keep_own_arguments(
    plain: dict[str, Any], typed: Sequence[str], written: Sequence[str] = ()
) -> dict[str, Any]:
    """Drop what a group's option gave to the class it was for, where the user names another.

    ``typed`` are the user's overrides. ``model._target_=mine.Net model.width=8`` builds
    ``mine.Net(width=8)``, whatever the option's own class takes. ``written`` are the keys that an
    experiment file sets itself: a class named there keeps what is given there and typed. Raises
    :class:`ConfigError` for a model that is typed where nobody says what it learns from.
    """
    keys = set(map(key_of, typed))
    if "model._target_" in keys and keys.isdisjoint(("experiment", "sweep.resume")):
        _check_dataset_named(plain, keys)
    kept = dict(plain)
    for group in ("model", "dataset", "optimizer"):
        target = f"{group}._target_"
        given = keys if target in keys else keys.union(written) if target in written else None
        if given is not None:
            own = {k.split(".")[1] for k in given if k.startswith(f"{group}.")} | {"loader"}
            kept[group] = {k: v for k, v in kept[group].items() if k in own}
    return kept


def _check_dataset_named(plain: Mapping[str, Any], given: Iterable[str]) -> None:
    target, name = str(plain["model"].get("_target_")), plain["dataset"].get("name")
    if target.startswith("scalewise.") or name != _default_option("dataset", conf_dir()):
        return
    if not any(re.match(r"~?dataset(\.(?!loader\b)|$)", key) for key in given):
        raise ConfigError(
            f"dataset: found none named beside model._target_={target}, and the default, "
            f"{name}, is for models of scalewise; allowed: "
            "dataset._target_=package.module.NAME, a class or a function, dataset=NAME, or "
            "dataset=own_loaders, where the module has train_dataloader"
        )


def conf_dir() -> Path:
    """The config groups: inside the installed package, or beside ``src`` in a checkout.

    Raises FileNotFoundError where neither exists: the installation is broken.
    """
    package = Path(str(importlib.resources.files("scalewise"))).resolve()
    for folder in (package / "conf", package.parents[1] / "conf"):
        if (folder / "config.yaml").is_file():
            return folder
    raise FileNotFoundError(f"{package / 'conf'}: the shipped configuration is missing; reinstall")


def options_of(group: str) -> list[str]:
    """The options of a config group; none where there is no such group."""
    return sorted(path.stem for path in (conf_dir() / group).glob("*.yaml")) if group else []


def option_of(group: str, name: str) -> dict[str, Any]:
    """What the file of an option says, with nothing of others in it."""
    path = conf_dir() / group / f"{name}.yaml"
    option: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return option


@functools.cache  # asked for each cell
def _default_option(group: str, conf: Path) -> str:
    """The option of a group that is taken where none is named."""
    shipped = yaml.safe_load((conf / "config.yaml").read_text(encoding="utf-8"))
    return next(str(one[group]) for one in shipped["defaults"] if group in one)


def is_shipped(key: str, component: Component) -> bool:
    """Whether ``component`` is what a file of ours in the group ``key`` says, to the last argument.

    Those build: the tests build every one. Nobody has to import torch, for seconds, to see it.
    """
    return component == _option(key, component.name)


@functools.cache
def _option(key: str, name: str) -> Component | None:
    if name not in options_of(key):
        return None
    group = option_of(key, name)
    try:
        return component_of(key, {k: v for k, v in group.items() if k != "loader"})
    except ConfigError:
        return None  # an option that is completed by others
