"""Which components of a configuration are exactly an option of this package."""

from __future__ import annotations

import functools

import yaml

from scalewise.components import Component, component_of
from scalewise.errors import ConfigError
from scalewise.paths import conf_dir


def is_shipped(key: str, component: Component) -> bool:
    """Whether ``component`` is what a file of ours in the group ``key`` says, to the last argument.

    Those build: the tests build every one. Nobody has to import torch, for seconds, to see it.
    """
    return component == _option(key, component.name)


@functools.cache
def _option(key: str, name: str) -> Component | None:
    path = conf_dir() / key / f"{name}.yaml"
    if not path.is_file():
        return None
    group = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(group, dict):
        return None
    try:
        return component_of(key, {k: v for k, v in group.items() if k != "loader"})
    except ConfigError:
        return None  # an option that is completed by others
