"""A named configuration as the default of the runs to come: ``.defconfig`` in the working folder.

``make defconfig-NAME`` writes it. Each line is an override, as on the command line; what is typed
there wins, key by key.
"""

from __future__ import annotations

import errno
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from scalewise.config import ConfigError, TrackingConfig, conf_dir, in_one_line, options_of
from scalewise.host import escaped, say
from scalewise.records import DataError, RecordError, build, closest

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
        _check_trackers(trackers)
        lines.append(f"tracking.trackers=[{','.join(trackers)}]")
    FILE.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return lines


def _check_trackers(trackers: Sequence[str]) -> None:
    """Refuse now what every run to come would be refused for. Raises :class:`ConfigError`."""
    try:
        build(TrackingConfig, {"trackers": list(trackers)}, "tracking")
    except DataError as error:
        raise ConfigError(f"{error}, or {NONE} alone") from error


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


def under(typed: Sequence[str], defaults: Sequence[str]) -> list[str]:
    """The defaults that ``typed`` leaves standing: those whose key it does not name.

    A tracker's setting falls with the group it belongs to.
    """
    keys = {word.partition("=")[0].lstrip("+~") for word in typed if "=" in word}
    return [
        line
        for line in defaults
        if (key := line.partition("=")[0]) not in keys and key.partition(".")[0] not in keys
    ]


# What is wrong with the input, in one line, for errors of any origin.


_READERS = ("hydra", "omegaconf", "optuna")
"""What they raise themselves is about what was typed: our code runs within them as a function."""


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Found while writing, where the error names no file; the last is ``ulimit -f``."""


def explain(error: BaseException) -> str | None:
    """What is wrong with the input, in one line; None if the input is not to blame.

    What of it the user typed, control characters too, is written so that it stays one.
    """
    text = _explanation(error)
    return None if text is None else escaped(text)


def is_the_hosts_fault(error: BaseException) -> bool:
    """A full disk, or a file that the host refuses: said in one line, like wrong input."""
    return isinstance(error, OSError) and (bool(error.filename) or error.errno in _FULL)


def _explanation(error: BaseException) -> str | None:
    from hydra.errors import HydraException, MissingConfigException, OverrideParseException
    from omegaconf.errors import OmegaConfBaseException

    if isinstance(error, (ConfigError, RecordError)):  # such as a torn plan of a resumed sweep
        return str(error)
    if isinstance(error, OSError) and is_the_hosts_fault(error):
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, MissingConfigException) and error.options:
        # Hydra's own words add the paths in which it has looked.
        group, _, option = str(error.missing_cfg_file).rpartition("/")
        options = sorted(error.options)
        return f"{group}: found {option!r}{closest(option, options)}; allowed: {', '.join(options)}"
    if isinstance(error, OverrideParseException):
        return f"{error.override}: {in_one_line(error)}"
    if isinstance(error, (HydraException, OmegaConfBaseException)):
        cause = error if isinstance(error, OmegaConfBaseException) else error.__cause__
        return _explain_unknown_key(cause) or in_one_line(error)
    frames = [frame.f_globals for frame, _ in traceback.walk_tb(error.__traceback__)]
    theirs = frames and str(frames[-1].get("__name__", "")).startswith(_READERS)
    return in_one_line(error, with_class=True) if theirs else None


def _explain_unknown_key(error: Any) -> str | None:
    """OmegaConf knows which keys there are and does not say."""
    from omegaconf import DictConfig
    from omegaconf.errors import ConfigAttributeError, ConfigKeyError

    if not isinstance(error, (ConfigAttributeError, ConfigKeyError)) or not error.full_key:
        return None
    parent, key = error.parent_node, str(error.full_key)
    allowed = [str(name) for name in parent] if isinstance(parent, DictConfig) else []
    hint = f"; allowed: {', '.join(allowed)}" if allowed else ""
    return f"{key}: unknown key{closest(key.rpartition('.')[2], allowed)}{hint}"


# What was typed, put in the order that Hydra takes, and refused where it would be misread.


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
