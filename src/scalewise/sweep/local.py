"""What ``hydra/launcher=local`` may be told."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from scalewise.errors import ConfigError
from scalewise.validation import DataError, build
from scalewise.wrap import wrap_command


@dataclass(frozen=True)
class LocalConfig:
    """The config group ``hydra/launcher``, option ``local``."""

    policy: Literal["exclusive", "packed"] = "exclusive"
    """``exclusive``: one cell at a time; ``packed``: what fills the host."""
    wrap: str | None = None
    """Command around each rank's own: see :mod:`scalewise.wrap`."""
    warm: bool = False
    """Fork the ranks of cells that may be, from one process that has imported everything."""


def local_config(launcher: Mapping[str, Any]) -> LocalConfig:
    """The node ``hydra.launcher``, typed. Raises :class:`ConfigError` for what cannot run here."""
    try:
        config = build(LocalConfig, {k: v for k, v in launcher.items() if k != "_target_"})
        program = None if config.wrap is None else wrap_command(config.wrap, 0, 0, "")[0]
    except (DataError, ValueError) as error:
        raise ConfigError(f"hydra.launcher.{error}") from None
    if program is not None and shutil.which(program) is None:
        raise ConfigError(
            f"hydra.launcher.wrap: found {program!r}, which is not on this host's PATH; allowed: "
            "a command that runs the one after it, e.g. 'nsys profile -o {folder}/rank{rank}'"
        )
    return config
