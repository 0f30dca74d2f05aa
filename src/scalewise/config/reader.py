"""From Hydra's ``DictConfig`` to a typed cell and its ids.

Wrong input ends here, before any process starts, as one line that names the key, what was found
and what is allowed. The host (its GPUs) is checked by ``gpu.leases``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scalewise.config.cell import DEFAULT_MEASURE, CellConfig, default_project
from scalewise.config.components import component_of, options_of
from scalewise.config.errors import ConfigError, in_one_line
from scalewise.config.execution import DEFAULT_PROFILE
from scalewise.config.rehearsal import NO_REHEARSAL
from scalewise.config.script import key_of
from scalewise.config.strategies import strategy_config
from scalewise.config.training import callbacks_of, scheduler_of, trainer_arguments
from scalewise.records import DataError, build, redacted, to_plain

if TYPE_CHECKING:
    from omegaconf import DictConfig


def resolve(composed: DictConfig, choices: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Hydra's composed configuration as plain data, interpolations resolved, without ``hydra``.

    ``choices`` are the options of its groups. A class of the user's that has no name in its file is
    called as the file is, and the trackers' project as :func:`default_project` says.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    plain: dict[str, Any] = {}
    try:
        for key in composed:
            if key == "hydra":
                continue  # it may hold values that are missing on purpose
            value = composed[key]
            if OmegaConf.is_config(value):
                value = OmegaConf.to_container(value, resolve=True, throw_on_missing=True)
            plain[str(key)] = value
    except OmegaConfBaseException as error:
        raise ConfigError(in_one_line(error)) from error
    for group in ("model", "dataset", "optimizer"):
        own, option = plain.get(group), (choices or {}).get(group)
        if isinstance(own, dict) and option and "_target_" in own:
            plain[group] = {**own, "name": own.get("name") or str(option).rpartition("/")[2]}
    tracking = plain.get("tracking")
    if isinstance(tracking, dict):
        plain["tracking"] = {**tracking, "project": tracking.get("project") or default_project()}
    return plain


def build_cell(plain: Mapping[str, Any]) -> CellConfig:
    """The typed configuration of a cell. Raises :class:`ConfigError`."""
    data = {k: v for k, v in plain.items() if k != "experiment" and (k, v) != ("devices", None)}
    if "loader" in data:
        raise ConfigError("loader: unknown key; the loader's settings are dataset.loader.*")
    for key in [k for k, value in data.items() if isinstance(value, str) and options_of(k)]:
        _group(data, key)
    try:
        data["dataset"] = dataset = dict(_group(data, "dataset"))
        data["loader"] = dataset.pop("loader", {})
        for key in ("model", "dataset", "optimizer", *({"fault"} & data.keys())):
            data[key] = component_of(key, _group(data, key))
        data["callbacks"] = callbacks_of(data.get("callbacks") or {})
        data["scheduler"] = scheduler_of(data.get("scheduler"))
        data["trainer"] = trainer_arguments(data.get("trainer") or {})
        data["strategy"] = strategy_config(_group(data, "strategy"))
        return build(CellConfig, data)
    except DataError as error:
        # The loader is typed under `dataset.loader`, where it stands in the YAML.
        text = str(error)
        raise ConfigError(f"dataset.{text}" if text.startswith("loader") else text) from error


def _group(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    group = data.get(key)
    if not isinstance(group, Mapping):
        raise ConfigError(
            f"{key}: found {group!r}; allowed: an option of the group {key!r}: {key}=NAME typed, "
            f"or - override /{key}: NAME in the defaults of an experiment file"
        )
    return group


_ABSENT = {
    "profile": to_plain(DEFAULT_PROFILE),
    "measure": to_plain(DEFAULT_MEASURE),
    "rehearse": {"name": NO_REHEARSAL.name, "all": NO_REHEARSAL.all},
    "callbacks": {},
    "scheduler": {},
    "trainer": {},
    "ckpt_path": None,
    "test": False,
}
"""What stands for nothing: a record without it says the same."""


def without_absent_groups(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Drop what is not there: a run without callbacks, say, has the record and id of one that
    never heard of them."""
    return {key: value for key, value in plain.items() if (key, value) not in _ABSENT.items()}


_STEPS, _TIME = ("max_steps", "max_epochs"), "measure.min_time_s"
ENDS = (*_STEPS, _TIME)
"""Keys that end a run."""


def choose_end(
    plain: dict[str, Any], typed: Sequence[str], written: Sequence[str]
) -> dict[str, Any]:
    """``plain`` with one rule that ends a run: what is typed goes before what an experiment file
    has ``written``. Of equals steps and epochs end it; without any of them, time does.

    Two that are typed stay, and are refused.
    """
    measure = plain.get("measure")
    if not isinstance(measure, Mapping) or measure.get("min_time_s") is None:
        return plain
    keys = set(map(key_of, typed))
    keys -= {key for key in _STEPS if plain.get(key) is None}
    if _TIME in keys and not keys.isdisjoint(_STEPS):
        return plain
    if (keys if keys.intersection(ENDS) else set(written)).isdisjoint(_STEPS):
        return {**plain, **dict.fromkeys(_STEPS)}
    return {**plain, "measure": {**measure, "min_time_s": None}}


_DOES_NOT_MATTER = (
    "sweep", "tracking", "monitor", "repeats", "precision_percent", "max_repeats", "devices",
    "rehearse",
)  # fmt: skip
"""Keys that say how a cell is run and watched, not what comes out of it; ``strategy`` has the
devices, and what is rehearsed."""


def config_id(plain: Mapping[str, Any]) -> str:
    """Hash of what determines a cell's result: repeats of one configuration share it."""
    relevant = {k: v for k, v in plain.items() if k not in _DOES_NOT_MATTER}
    relevant = redacted(relevant)  # whose key it is changes no result, and a hash can be guessed
    text = json.dumps(relevant, sort_keys=True, separators=(",", ":"), default=to_plain)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def repeat_id(configuration: str, repeat: int) -> str:
    """Hash of one run: of its :func:`config_id` and the number of the repeat."""
    return hashlib.sha256(f"{configuration}/{repeat}".encode()).hexdigest()[:12]
