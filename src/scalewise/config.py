"""From Hydra's ``DictConfig`` to a typed cell: the only reader of it.

Everything a user can type wrong ends here, as one line that names the key, what was found and
what is allowed, before any process starts, with exit status 2. What depends on the host that
runs a cell (how many GPUs, which model) is checked there, by ``sweep.lease``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from scalewise.cell_config import FEWEST_ADAPTIVE_REPEATS, CellConfig
from scalewise.components import (
    Component,
    bind,
    check_module,
    component_of,
    instantiate,
    keep_own_arguments,
    load_target,
)
from scalewise.errors import EXIT_CONFIG_ERROR, ConfigError, in_one_line
from scalewise.identity import cell_id, config_id, repeat_id, without_absent_groups
from scalewise.policies import MonitorConfig, SweepConfig
from scalewise.train.strategies import strategy_config
from scalewise.validation import DataError, build

if TYPE_CHECKING:
    from omegaconf import DictConfig

__all__ = [
    "EXIT_CONFIG_ERROR",
    "FEWEST_ADAPTIVE_REPEATS",
    "CellConfig",
    "Component",
    "ConfigError",
    "MonitorConfig",
    "SweepConfig",
    "bind",
    "build_cell",
    "cell_id",
    "check_module",
    "config_id",
    "instantiate",
    "keep_own_arguments",
    "load_target",
    "most_cells",
    "repeat_id",
    "resolve",
    "without_absent_groups",
]


def resolve(composed: DictConfig) -> dict[str, Any]:
    """Hydra's composed configuration as plain data, interpolations resolved, without ``hydra``."""
    from omegaconf.errors import OmegaConfBaseException

    try:
        # One key at a time: the node `hydra` may hold values that are missing on purpose.
        plain = {str(key): _plain_value(composed, str(key)) for key in composed if key != "hydra"}
    except OmegaConfBaseException as error:
        raise ConfigError(in_one_line(error)) from error
    return plain


def _plain_value(composed: DictConfig, key: str) -> Any:
    from omegaconf import OmegaConf

    value = composed[key]
    if not OmegaConf.is_config(value):
        return value
    return OmegaConf.to_container(value, resolve=True, throw_on_missing=True)


def most_cells(composed: DictConfig) -> int:
    """``sweep.max_cells`` of a configuration that is not yet a cell's. Raises ConfigError."""
    sweep = composed.get("sweep")
    given = sweep.get("max_cells") if isinstance(sweep, Mapping) else None
    try:
        # What else is wrong with the node is refused with the first cell.
        return build(SweepConfig, {} if given is None else {"max_cells": given}, "sweep").max_cells
    except DataError as error:
        raise ConfigError(str(error)) from error


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
            data[key] = component_of(key, group)
        if "fault" in data:
            data["fault"] = component_of("fault", _group(data, "fault"))
        _check_mixed_up(plain)
        data["strategy"] = strategy_config(_group(data, "strategy"))
        return build(CellConfig, data)
    except ConfigError:
        raise
    except DataError as error:
        # The loader is typed under `dataset.loader`, where it stands in the YAML.
        text = str(error)
        raise ConfigError(f"dataset.{text}" if text.startswith("loader") else text) from error


def _check_mixed_up(plain: Mapping[str, Any]) -> None:
    """Refuse what belongs into another key, and name that key. Raises :class:`DataError`."""
    strategy, sweep = plain.get("strategy"), plain.get("sweep")
    devices = strategy.get("devices") if isinstance(strategy, Mapping) else None
    if isinstance(devices, list):
        raise DataError(
            f"strategy.devices: found {devices}; allowed: how many devices, or auto; "
            f"hardware.gpus={str(devices).replace(' ', '')} says which"
        )
    extend = sweep.get("extend") if isinstance(sweep, Mapping) else None
    if isinstance(extend, str):
        raise DataError(
            f"sweep.extend: found {extend!r}; allowed: the number of repeats to add: "
            "sweep.resume=FOLDER sweep.extend=N, with the overrides of that sweep"
        )


def _group(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    group = data.get(key)
    if not isinstance(group, Mapping):
        raise ConfigError(f"{key}: found {group!r}; allowed: an option of the group {key!r}")
    return group
