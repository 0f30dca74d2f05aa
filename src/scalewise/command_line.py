"""What was typed, put in the order that Hydra takes, and refused where it would be misread."""

from __future__ import annotations

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

    ``--dry-run`` is ``sweep.dry_run=true`` by the name that other programs give it.

    Raises ConfigError for an option that Hydra does not have, for two that exclude each other,
    and for an override that would be misread.
    """
    from hydra._internal.utils import get_args_parser

    parser = get_args_parser()
    parser.add_argument("--dry-run", "--dryrun", action="store_true", dest="dry_run")
    parser.error = _refuse  # type: ignore[method-assign]
    given, unknown = parser.parse_known_intermixed_args(arguments)
    if unknown:
        _refuse(
            f"unrecognized arguments: {' '.join(unknown)}; an override has no dashes: KEY=VALUE"
        )
    options = list(arguments)
    for override in reversed(given.overrides):
        _check_override(override)
        # The last of its kind: an equal word before it is the value of an option.
        del options[len(options) - 1 - options[::-1].index(override)]
    options = [word for word in options if not word.startswith("--dry")]
    asked = ["sweep.dry_run=true"] if given.dry_run else []
    return [*options, *given.overrides, *asked]


def _refuse(message: str) -> NoReturn:
    raise ConfigError(f"{message}; python train.py --hydra-help lists the options")


def _check_override(override: str) -> None:
    """Raises ConfigError for what Hydra would misread.

    It lays the options of a list one over the other, takes a launcher's name for its settings,
    and an empty folder for the current one.
    """
    key, _, value = override.partition("=")
    key = key.strip().lstrip("+~")
    group = key.replace(".", "/")
    options = options_of(group)
    if options and (value.startswith("[") or group != key):
        allowed = ", ".join(options)
        raise ConfigError(f"{key}: found {value!r}; allowed: {group}=NAME, one of {allowed}")
    if key in ("hydra.run.dir", "hydra.sweep.dir") and not value.strip("'\""):
        raise ConfigError(f"{key}: found {value!r}; allowed: a folder")
