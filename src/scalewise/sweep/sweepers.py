"""What other sweepers than our own are asked for, looked at before they begin.

Hydra's basic sweeper writes all combinations down and composes each before a launcher hears of
any, and Optuna's fails deep inside over a number that cannot be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import HydraContext
from omegaconf import DictConfig

from scalewise.config import ConfigError, most_cells
from scalewise.streams import say
from scalewise.sweep.grid import check_size

_MANY = 300
"""Configurations from which on the composing by Hydra's basic sweeper takes half a minute."""
_DIRECTIONS = ("minimize", "maximize")


def is_basic(master: DictConfig) -> bool:
    """Whether Hydra's own sweeper chooses the cells."""
    return str(master.hydra.sweeper._target_).endswith(".BasicSweeper")


def is_optuna(master: DictConfig) -> bool:
    """Whether Optuna chooses the cells."""
    return str(master.hydra.sweeper._target_).endswith(".OptunaSweeper")


def check_sweeper(master: DictConfig, context: HydraContext) -> None:
    """Refuse more cells than ``sweep.max_cells``, and settings that a sweeper would trip over.

    ``master`` is what Hydra composed for the sweep itself. Raises :class:`ConfigError`.
    """
    if is_basic(master):
        params = master.hydra.sweeper.get("params") or {}
        typed = list(master.hydra.overrides.task)
        parser = OverridesParser.create(config_loader=context.config_loader)
        cells = check_size(params, typed, parser, most_cells(master))
        if cells >= _MANY:
            say(
                f"hydra/sweeper=basic composes each of the {cells:,} configurations before the "
                "first starts, some ten a second; hydra/sweeper=matrix, the default, makes the "
                "same cells in seconds"
            )
    if is_optuna(master):
        _check_optuna(master.hydra.sweeper)


def _check_optuna(sweeper: Mapping[str, Any]) -> None:
    for key in ("n_trials", "n_jobs"):
        found = sweeper.get(key)
        if not isinstance(found, int) or found < 1:
            raise ConfigError(f"hydra.sweeper.{key}: found {found}; allowed: 1 or more")
    direction = sweeper.get("direction")
    given = list(direction) if isinstance(direction, Sequence) else [direction]
    for one in [direction] if isinstance(direction, str) else given:
        # Optuna's own are members of an enumeration of these names.
        if getattr(one, "name", one) not in _DIRECTIONS:
            raise ConfigError(
                f"hydra.sweeper.direction: found {'null' if one is None else one}; allowed: "
                f"{' or '.join(_DIRECTIONS)}"
            )
