"""Which strategy a cell has: ``devices=2``, and keys that some strategies of a sweep lack."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import yaml

from scalewise.config.components import conf_dir
from scalewise.config.errors import ConfigError
from scalewise.config.strategies import KINDS

_ADDED = "++"
"""Hydra's words for a key that the chosen option need not have."""
_OPEN = ("strategy.", "callbacks.", "scheduler.", "trainer.")
"""Groups whose keys are those of what is chosen there."""


def open_keys(overrides: Iterable[str]) -> list[str]:
    """``overrides`` for Hydra, whose ``strategy.*`` and the like are taken whatever is chosen.

    So are the arguments of a class that is named, or of options that are swept: Hydra knows those
    of the default option.
    A key that the strategy or the class does not know is refused where that is built.
    """
    typed = list(overrides)
    own = _own_arguments(typed)
    return [_ADDED + text if text.startswith(own) else text for text in typed]


def as_typed(overrides: Sequence[str]) -> list[str]:
    """The inverse of :func:`open_keys`."""
    own = tuple(f"{_ADDED}{start}" for start in _own_arguments(overrides))
    return [text.removeprefix(_ADDED) if text.startswith(own) else text for text in overrides]


def _own_arguments(overrides: Iterable[str]) -> tuple[str, ...]:
    """How the keys begin that no option of a group decides on."""
    named = re.compile(r"[+]*(model|dataset|optimizer)(?:\._target_=|=[^\[{(]*,)")
    groups = [found[1] for text in overrides if (found := named.match(text))]
    return (*_OPEN, *(f"{group}." for group in groups))


def place_on_devices(plain: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """A composed configuration without its key ``devices``, which its strategy says instead.

    One device is ``single``. More are ``ddp``, unless ``overrides`` or an experiment name another
    strategy. Raises :class:`ConfigError` for a number that cannot be, or one said twice.
    """
    placed = {key: value for key, value in plain.items() if key != "devices"}
    devices = plain.get("devices")
    if devices is None:
        return placed
    typed = [text.lstrip("+").partition("=")[::2] for text in overrides]
    of_strategy = {key: value for key, value in typed if key.partition(".")[0] == "strategy"}
    if devices != "auto" and (type(devices) is not int or devices < 1):
        raise ConfigError(f"devices: found {devices!r}; allowed: 1 or more, or auto (all)")
    if "strategy.devices" in of_strategy:
        twice = f"strategy.devices={of_strategy['strategy.devices']}"
        raise ConfigError(f"devices: found {devices} with {twice}; allowed: one of them")
    if devices != 1 and of_strategy.get("strategy") == "single":
        raise ConfigError(f"devices: found {devices} with strategy=single; allowed: 1, or ddp")
    strategy = dict(plain["strategy"])
    if devices == 1:
        strategy = _option("single") | _keys_typed(of_strategy, strategy)
    elif strategy.get("kind") == "single":
        strategy = _option("ddp") | _keys_typed(of_strategy, strategy)
    return {**placed, "strategy": {**strategy, "devices": devices}}


def devices_as_typed(message: str, overrides: Iterable[str]) -> str:
    """An error about ``strategy.devices``, of ``devices`` where ``overrides`` name it so."""
    if any(text.lstrip("+").startswith("devices=") for text in overrides):
        return re.sub(r"^strategy\.(?=devices:)", "", message)
    return message


def _keys_typed(typed: Mapping[str, str], strategy: Mapping[str, Any]) -> dict[str, Any]:
    names = [key.split(".")[1] for key in typed if "." in key]
    return {name: strategy[name] for name in names if name in strategy}


def _option(name: str) -> dict[str, Any]:
    path = conf_dir() / "strategy" / f"{name}.yaml"
    option: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return option


def keep_known_keys(sweep: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The configurations of a sweep; a key of one strategy is left out of those without it.

    So ``strategy=single,ddp strategy.bucket_cap_mb=50`` sets it where there are buckets. What no
    strategy of the sweep knows stays, to be refused.
    """
    known = [_known(plain.get("strategy")) for plain in sweep]
    somewhere = frozenset[str]().union(*known)
    kept = []
    for plain, own in zip(sweep, known, strict=True):
        strategy = plain.get("strategy")
        if own and isinstance(strategy, Mapping):
            foreign = somewhere - own
            strategy = {key: value for key, value in strategy.items() if key not in foreign}
            if own < somewhere and strategy["kind"] == "single":
                strategy["devices"] = 1  # strategy.devices was typed for the others
        kept.append({**plain, "strategy": strategy})
    return kept


def _known(strategy: Any) -> frozenset[str]:
    kind = strategy.get("kind") if isinstance(strategy, Mapping) else None
    config = KINDS.get(kind) if isinstance(kind, str) else None
    return frozenset() if config is None else frozenset(f.name for f in fields(config))
