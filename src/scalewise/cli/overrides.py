"""Words of the command line in the order that Hydra takes, below them the saved defaults.

The defaults are lines of ``.defconfig`` in the working folder, which ``make defconfig-NAME``
writes. Each is an override, and what is typed wins over it, key by key. A script of ``scalewise
run`` is an experiment like others, in the same words.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import NoReturn

from scalewise.config import (
    ConfigError,
    ScriptConfig,
    TrackingConfig,
    conf_dir,
    key_of,
    open_keys,
    options_of,
    refuse_unseen,
    spelled,
)
from scalewise.host import say
from scalewise.records import DataError, build, closest

FILE = Path(".defconfig")
NONE = "none"
"""The name that takes the default away."""


def save(name: str, trackers: Sequence[str] = ()) -> list[str]:
    """Make the experiment ``name`` (dashes or underscores) the default, and return its overrides.

    Raises :class:`ConfigError` for a name that is no experiment, or a tracker that is none.
    """
    if name == NONE:
        FILE.unlink(missing_ok=True)
        return []
    wanted = name.replace("-", "_")
    known = sorted(path.stem for path in (conf_dir() / "experiment").glob("*.yaml"))
    if wanted not in known:
        raise ConfigError(
            f"found {name!r}{closest(wanted, known)}; allowed: {', '.join(known)}, or {NONE}"
        )
    lines = [f"experiment={wanted}"]
    if list(trackers) == [NONE]:
        lines.append("tracking=none")
    elif trackers:
        try:
            build(TrackingConfig, {"trackers": list(trackers)}, "tracking")
        except DataError as error:
            raise ConfigError(f"{error}, or {NONE} alone") from error
        lines.append(f"tracking.trackers=[{','.join(trackers)}]")
    FILE.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return lines


def saved() -> list[str]:
    """The overrides of the saved default; none where there is none.

    Raises :class:`ConfigError` for a file that cannot be read.
    """
    try:
        text = FILE.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{FILE} cannot be read: {error}; remove it, or write it anew with make defconfig-NAME"
        ) from error
    return [line.strip() for line in text.splitlines() if line.strip()]


def with_defaults(arguments: list[str]) -> list[str]:
    """The saved defaults before what was typed, and a line that says so.

    A default falls with a typed override of its key, or of the group that the key belongs to.
    """
    keys = {word.partition("=")[0].lstrip("+~") for word in arguments if "=" in word}
    defaults = [
        line
        for line in saved()
        if (key := line.partition("=")[0]) not in keys and key.partition(".")[0] not in keys
    ]
    if defaults:
        say(f"defaults of {FILE} (make defconfig-none removes them): {' '.join(defaults)}")
    return [*defaults, *arguments]


def without_verbose(arguments: list[str]) -> tuple[list[str], bool]:
    """The words without ``-v`` and ``--verbose``, and whether one was there: Hydra has neither."""
    words = [word for word in arguments if word not in ("-v", "--verbose")]
    return words, len(words) < len(arguments)


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
    given, wrong = parser.parse_known_intermixed_args(arguments)
    if wrong:
        _refuse(f"unrecognized arguments: {' '.join(wrong)}; an override has no dashes: KEY=VALUE")
    options = list(arguments)
    for override in reversed(given.overrides):
        _check_override(override)
        # The last of its kind: an equal word before it is the value of an option.
        del options[len(options) - 1 - options[::-1].index(override)]
    options = [word for word in options if not word.startswith("--dry")]
    typed = (spelled(_with_quotes(_tracked_by_all(one))) for one in given.overrides)
    return [*options, *open_keys(typed), *["sweep.dry_run=true"] * given.dry_run]


def _with_quotes(override: str) -> str:
    """``ckpt_path=epoch=3.ckpt`` as ``ckpt_path='epoch=3.ckpt'``: Lightning names files so."""
    key, _, value = override.partition("=")
    if key != "ckpt_path" or not re.fullmatch(r"[\w/.+-]+(=[\w/.+-]*)+", value):
        return override
    return f"{key}='{value}'"


def _tracked_by_all(override: str) -> str:
    """``tracking=wandb,trackio`` as ``tracking=both``: trackers are no axis of a sweep."""
    key, _, value = override.partition("=")
    if key != "tracking" or "," not in value:
        return override
    if set(value.split(",")) != {"wandb", "trackio"}:
        allowed = ", ".join(options_of("tracking"))
        raise ConfigError(f"tracking: found {value!r}; allowed: {allowed}, one of them")
    return "tracking=both"


def program() -> str:
    """What was typed to get here: ``scalewise train``, or a script as ``python train.py``."""
    name = PurePath(sys.argv[0]).name
    return f"python {name}" if name.endswith(".py") else name


def _refuse(message: str) -> NoReturn:
    raise ConfigError(f"{message}; {program()} --hydra-help lists the options")


def _check_override(override: str) -> None:
    """Raises ConfigError for what Hydra would misread.

    It lays the options of a list one over the other, takes a launcher's name for its settings, has
    no line for a number, and with a + takes any key.
    """
    key, _, value = override.partition("=")
    key = key.strip().lstrip("+~")
    if not re.fullmatch(r"[\w./@:-]+", key) or value.startswith("="):  # Hydra says little
        raise ConfigError(f"found {override!r}; allowed: KEY=VALUE")
    group = key.replace(".", "/")
    options = options_of(group)
    listed = value.startswith("[") and group != "callbacks"  # whose options have keys of their own
    is_number = re.fullmatch(r"[+-]?[\d.]+|null", value) is not None
    if options and (listed or is_number or group != key):
        allowed = ", ".join(options)
        raise ConfigError(f"{key}: found {value!r}; allowed: {group}=NAME, one of {allowed}")


def words_of(
    command: Sequence[str], devices: str | None, time_s: str | None, repeats: str | None,
    settings: Sequence[str] = (), rehearse: str | None = None, link: str | None = None,
) -> list[str]:  # fmt: skip
    """The overrides that ask for ``command`` on each number of ``devices``, and of ``rehearse``.

    Raises :class:`ConfigError` for what cannot be watched, is no number, is said twice, or no
    script sees.
    """
    again = {key_of(setting): setting for setting in settings}
    for key, option, typed in (
        ("devices", "--devices", devices), ("devices", "--rehearse", rehearse),
        ("rehearse", "--rehearse", rehearse), ("rehearse.record", "--link", link),
        ("measure.min_time_s", "--time", time_s), ("repeats", "--repeats", repeats),
    ):  # fmt: skip
        if typed is not None and key in again:
            twice = f"{option} {typed} and --set {again[key]}"
            raise ConfigError(f"{key}: found twice, by {twice}; allowed: one of them")
    devices = devices or ("1,2" if rehearse is None else "1")
    for option, typed in (("devices", devices), ("rehearse", rehearse or devices)):
        if not re.fullmatch(r"\d+(,\d+)*", typed):
            raise ConfigError(f"--{option}: found {typed!r}; allowed: numbers, as 1,2")
    if link is not None and rehearse is None:
        raise ConfigError(f"--link: found {link} without --rehearse; allowed: --rehearse 2,4 too")
    if repeats not in (None, "auto") and not repeats.isdecimal():
        raise ConfigError(f"--repeats: found {repeats!r}; allowed: auto, or a number")
    refuse_unseen(settings, "--set: ")
    if rehearse is not None:
        devices = ",".join(map(str, sorted({*map(int, f"{devices},{rehearse}".split(","))})))
    is_record = link is not None and link.endswith(".json")  # of an examination
    script = ScriptConfig(shlex.join(command))
    return [
        "-m",
        "experiment=script",
        f"script.command={quoted(script.command)}",
        f"model.name={quoted(script.name)}",
        f"devices={devices}",
        *([] if rehearse is None else [f"rehearse={'doctor' if is_record else link or 'auto'}"]),
        *([f"rehearse.record={quoted(link)}"] if link and is_record else []),
        # Left out, rounds are added until it is decided, within a budget.
        *([] if repeats in (None, "auto") else [f"repeats={repeats}"]),
        *([] if time_s is None else [f"measure.min_time_s={_seconds(time_s)}"]),
        *settings,
    ]


def quoted(text: str) -> str:
    """``text`` as one value to Hydra: neither its quotes nor its interpolations mean anything."""
    plain = re.sub(r"(\\*)(\$\{)", r"\1\1\\\2", text)
    # Within quotes a backslash is one, unless a quote follows the row of them.
    inner = re.sub(r"(\\*)('|$)", lambda m: 2 * m[1] + ("\\'" if m[2] else ""), plain)
    return f"'{inner}'"


def _seconds(text: str) -> str:
    number = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|m)?", text)
    if number is None:
        raise ConfigError(f"--time: found {text!r}; allowed: seconds or minutes, as 30s or 2m")
    return f"{float(number[1]) * (60 if number[2] in ('m', 'min') else 1):g}"
