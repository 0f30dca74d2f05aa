"""What was typed, put in the order that Hydra takes, and refused where it would be misread."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

from scalewise.config import ConfigError
from scalewise.defaults import FILE, saved, under
from scalewise.explain import options_of
from scalewise.streams import say


def with_defaults(arguments: list[str]) -> list[str]:
    """The saved default configuration before what was typed, and a line that says so."""
    defaults = under(arguments, saved())
    if defaults:
        say(f"defaults of {FILE} (make defconfig-none removes them): {' '.join(defaults)}")
    return [*defaults, *arguments]


def overrides_last(arguments: list[str]) -> list[str]:
    """``a=1 -m b=2`` as ``-m a=1 b=2``: Hydra's parser takes the overrides in one piece only.

    Raises ConfigError for an option that Hydra does not have, and for a launcher or sweeper that
    is no choice of one.
    """
    from hydra._internal.utils import get_args_parser

    parser = get_args_parser()

    def refuse(message: str) -> NoReturn:
        raise ConfigError(f"{message}; python {Path(sys.argv[0]).name} --hydra-help lists them")

    parser.error = refuse  # type: ignore[method-assign]
    overrides = parser.parse_intermixed_args(arguments).overrides
    for override in overrides:
        _check_override(override)
    options = list(arguments)
    for override in reversed(overrides):
        # The last of its kind: an equal word before it is the value of an option.
        del options[len(options) - 1 - options[::-1].index(override)]
    return [*options, *overrides]


def _check_override(override: str) -> None:
    """Refuse what Hydra would trip over, or take for something that nobody means.

    It starts its launcher and sweeper from nodes of their own, and anything else there is no
    launcher.

    Raises ConfigError.
    """
    key, _, value = override.partition("=")
    key = key.strip().lstrip("+~")
    if key in ("hydra.launcher", "hydra.sweeper"):
        raise ConfigError(
            f"{key}: found {value or override!r} in place of its settings; allowed: "
            f"{key.replace('.', '/')}=NAME to choose one, {key}.KEY=VALUE to set it"
        )
    if key in ("hydra/launcher", "hydra/sweeper") and (value == "null" or override[0] == "~"):
        raise ConfigError(f"{key}: found {override!r}; allowed: NAME of one, or leave it out")
    if value.startswith("[") and (options := options_of(key)):
        # Hydra would lay one over the other.
        raise ConfigError(f"{key}: found the list {value}; allowed: one of {', '.join(options)}")
    if key in ("hydra.run.dir", "hydra.sweep.dir") and value.strip("'\"") == "":
        raise ConfigError(f"{key}: found {override!r}; allowed: a folder, {key}=FOLDER")
