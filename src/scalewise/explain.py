"""What is wrong with the input, in one line, for errors of any origin."""

from __future__ import annotations

import errno
import traceback
from typing import Any

from scalewise.config import ConfigError
from scalewise.errors import escaped, in_one_line
from scalewise.paths import conf_dir
from scalewise.records import RecordError
from scalewise.validation import closest

_READERS = ("hydra", "omegaconf", "optuna")
"""What they raise themselves is about what was typed: our code runs within them as a function."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Found while writing, where the error names no file; the last is ``ulimit -f``."""


def options_of(group: str) -> list[str]:
    """The options of a config group; none where there is no such group."""
    return sorted(path.stem for path in (conf_dir() / group).glob("*.yaml")) if group else []


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
