"""What is wrong with the input, in one line, for errors of any origin."""

from __future__ import annotations

import errno
import re
import traceback
from typing import Any

from scalewise.config import ConfigError
from scalewise.errors import escaped, in_one_line
from scalewise.paths import conf_dir
from scalewise.records import RecordError
from scalewise.validation import closest

_PARSERS_WORDS = re.compile(r" expecting \{[^}]*\}| See https://\S+ for details")
"""A list of the grammar's tokens, and a page about the grammar: no help to who mistyped a word."""
_READERS = ("hydra", "omegaconf", "optuna", "hydra_plugins.hydra_optuna_sweeper")
"""What they raise themselves is about what was typed: our code runs within them as a function."""
_OF_THE_HOST = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,  # ulimit -f
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,  # a folder that may not be changed, by whoever owns it
    errno.EISDIR,
    errno.ELOOP,  # a link instead of a lock
    errno.ENAMETOOLONG,
    errno.ENOTDIR,
    errno.EEXIST,
    errno.ENOENT,  # the sweep's folder was moved away while it ran
)


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
    """A full disk or a folder that is not the user's: said in one line, like wrong input."""
    return isinstance(error, OSError) and error.errno in _OF_THE_HOST


def _explanation(error: BaseException) -> str | None:
    from hydra.errors import HydraException, MissingConfigException, OverrideParseException
    from omegaconf.errors import OmegaConfBaseException

    if isinstance(error, (ConfigError, RecordError)):  # such as a torn plan of a resumed sweep
        return str(error)
    if isinstance(error, OSError) and is_the_hosts_fault(error):
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, MissingConfigException) and error.options:
        return _explain_missing(error)
    if isinstance(error, OverrideParseException):
        return f"{error.override}: {_PARSERS_WORDS.sub('', in_one_line(error))}"
    if isinstance(error, (HydraException, OmegaConfBaseException)):
        cause = error if isinstance(error, OmegaConfBaseException) else error.__cause__
        unknown = isinstance(cause, OmegaConfBaseException) and _explain_unknown_key(cause)
        return unknown or in_one_line(error)
    return in_one_line(error, with_class=True) if _raised_in(error, _READERS) else None


def _raised_in(error: BaseException, modules: tuple[str, ...]) -> bool:
    """Whether the innermost frame is one of theirs."""
    module = ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module = str(frame.f_globals.get("__name__", ""))
    return module.startswith(modules)


def _explain_missing(error: Any) -> str:
    """Without the paths in which Hydra has looked."""
    group, _, option = str(error.missing_cfg_file).rpartition("/")
    options = sorted(error.options)
    return f"{group}: found {option!r}{closest(option, options)}; allowed: {', '.join(options)}"


def _explain_unknown_key(error: Any) -> str | None:
    """OmegaConf knows which keys there are and does not say."""
    from omegaconf import DictConfig
    from omegaconf.errors import ConfigAttributeError, ConfigKeyError

    parent = error.parent_node
    if not isinstance(error, (ConfigAttributeError, ConfigKeyError)) or not error.full_key:
        return None
    allowed = [str(key) for key in parent] if isinstance(parent, DictConfig) else []
    hint = f"; allowed: {', '.join(allowed)}" if allowed else ""
    key = str(error.full_key)
    return f"{key}: unknown key{closest(key.rpartition('.')[2], allowed)}{hint}"
