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


_DRY_RUN = ("--dry-run", "--dryrun")


def overrides_last(arguments: list[str]) -> list[str]:
    """``a=1 -m b=2`` as ``-m a=1 b=2``: Hydra's parser takes the overrides in one piece only.

    ``--dry-run`` is ``sweep.dry_run=true`` by the name that other programs give it.

    Raises ConfigError for an option that Hydra does not have, for two that exclude each other,
    and for an override that would be misread.
    """
    from hydra._internal.utils import get_args_parser

    parser = get_args_parser()
    parser.add_argument(*_DRY_RUN, action="store_true", dest="dry_run")

    def refuse(message: str) -> NoReturn:
        raise ConfigError(f"{message}; python {Path(sys.argv[0]).name} --hydra-help lists them")

    parser.error = refuse  # type: ignore[method-assign]
    given, unknown = parser.parse_known_intermixed_args(arguments)
    if unknown:
        refuse(f"unrecognized arguments: {' '.join(unknown)}{_without_dashes(unknown[0])}")
    if given.multirun and given.cfg:
        raise ConfigError(
            f"--cfg {given.cfg}: found with -m; allowed: without -m, for one run, or -m with "
            "--dry-run (sweep.dry_run=true), which lists the cells of a sweep"
        )
    overrides = given.overrides
    for override in overrides:
        _check_override(override)
    options = list(arguments)
    for override in reversed(overrides):
        # The last of its kind: an equal word before it is the value of an option.
        del options[len(options) - 1 - options[::-1].index(override)]
    options = [word for word in options if not word.startswith("--dry")]
    asked = ["sweep.dry_run=true"] if given.dry_run else []
    return [*options, *map(_as_shipped, overrides), *asked]


def _without_dashes(word: str) -> str:
    """What to type instead of ``--seed=3`` or ``--model``; nothing for other words."""
    key, equals, value = word.lstrip("-").partition("=")
    known = options_of(key) or equals
    return f" (an override has no dashes: {key}={value if equals else 'VALUE'})" if known else ""


def _as_shipped(override: str) -> str:
    """``precision=bf16_mixed`` as the option is called, for those who type underscores."""
    key, equals, value = override.partition("=")
    if key.lstrip("+") != "precision":
        return override
    return f"{key}{equals}{value.replace('16_mixed', '16-mixed')}"


def _check_override(override: str) -> None:
    """Refuse what Hydra would take for something that nobody means. Raises ConfigError."""
    key, _, value = override.partition("=")
    key = key.strip().lstrip("+~")
    if key in ("hydra.launcher", "hydra.sweeper"):
        raise ConfigError(
            f"{key}: found {value or override!r} in place of its settings; allowed: "
            f"{key.replace('.', '/')}=NAME to choose one, {key}.KEY=VALUE to set it"
        )
    if key in ("hydra.run.dir", "hydra.sweep.dir") and value.strip("'\"") == "":
        raise ConfigError(f"{key}: found {override!r}; allowed: a folder, {key}=FOLDER")
    if value.startswith("[") and (options := options_of(key)):
        # Hydra would lay one over the other.
        raise ConfigError(f"{key}: found the list {value}; allowed: one of {', '.join(options)}")
