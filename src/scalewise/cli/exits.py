"""The exit status of a command, and one line for an error."""

from __future__ import annotations

import enum
import errno
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from scalewise.config import ConfigError, DatasetError, in_one_line, key_of, options_of
from scalewise.host import discard, is_unread, say, silence_unread
from scalewise.records import RecordError, closest, words_beside


class Exit(enum.IntEnum):
    """Exit statuses of ``train.py`` and of every ``scalewise`` command; docs/sweeps.md has them."""

    DONE = 0
    """Done, or undecided."""
    FAILED = 1
    """A cell failed, a check found something, or the host did not take what was written."""
    WRONG_INPUT = 2
    SKIPPED = 3
    """Nothing failed, but a cell was skipped."""
    INVALID = 4
    """Nothing failed, but a verdict is invalid."""
    NOT_SHOWN = os.EX_IOERR
    """All was done, but standard output or the report could not be written."""
    INTERRUPTED = 128 + signal.SIGINT
    UNREAD = 128 + signal.SIGPIPE
    """Nobody reads standard output any longer."""


WRONG_INPUT = (ConfigError, DatasetError, RecordError)
"""Errors that say in one line what is wrong with the input."""

_READERS = ("hydra", "omegaconf", "optuna")
"""Errors raised in these are about what was typed: they call this package's code as functions."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of writing that name no file; the last is ``ulimit -f``."""


def shown(show: Callable[[], object]) -> bool:
    """Print with ``show``; False, and a line, where standard output cannot be written.

    A reader who is gone has seen enough.
    """
    try:
        show()
        sys.stdout.flush()
    except OSError as error:
        if not is_unread(error):
            discard(1)
            say(f"error: standard output: {error}; the table is not shown")
            return False
        silence_unread()
    return True


def is_the_hosts_fault(error: BaseException) -> bool:
    """A full disk, or a file that the host refuses: said in one line, like wrong input."""
    return isinstance(error, OSError) and (bool(error.filename) or error.errno in _FULL)


def explain(error: BaseException) -> str | None:
    """The error in one line; None for a bug of this package."""
    from hydra.errors import HydraException, MissingConfigException, OverrideParseException
    from omegaconf.errors import OmegaConfBaseException

    if isinstance(error, WRONG_INPUT):
        return str(error)
    if isinstance(error, OSError) and is_the_hosts_fault(error):
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    group, _, option = str(getattr(error, "missing_cfg_file", None) or "").rpartition("/")
    if isinstance(error, MissingConfigException) and group:
        # Hydra's own words add the paths in which it has looked, and tell no options of a list's;
        # its own launchers know no cells.
        options = sorted((group != "hydra/launcher" and error.options) or options_of(group))
        more = "; optuna: pip install 'scalewise[optuna]'" if option == "optuna" else ""
        if group == "strategy" and option.startswith("async"):
            return _NO_ASYNC.format(option)
        near = closest(option, options)
        return f"{group}: found {option!r}{near}; allowed: {', '.join(options)}{more}"
    if isinstance(error, OverrideParseException):
        if "=" not in str(error.override):
            return f"{error.override}: found a word without '='; allowed: KEY=VALUE"
        key, _, value = str(error.override).partition("=")
        if not value.isascii() and not re.search(r"['\"\\[{(,$`]", value):
            return f"{key}: found {value!r} without quotes of its own; allowed: \"{key}='{value}'\""
        _, called, why = in_one_line(error).partition(" while evaluating ")
        if called:  # a function of Hydra's, as interval(1,9), says what it wants
            return f"{error.override}: {why}"
        return f"{key_of(key)}: found {value!r}; allowed: one value, A,B or [A,B], others in quotes"
    if isinstance(error, (HydraException, OmegaConfBaseException)):
        cause = error if isinstance(error, OmegaConfBaseException) else error.__cause__
        said = in_one_line(error)
        return _explain_list(said) or _explain_unknown_key(cause, said) or said
    frames = [frame.f_globals for frame, _ in traceback.walk_tb(error.__traceback__)]
    theirs = frames and str(frames[-1].get("__name__", "")).startswith(_READERS)
    return in_one_line(error, with_class=True) if theirs else None


_NO_ASYNC = (
    "strategy: found {!r}; updates from stale gradients are left out: no two runs take the same "
    "steps, so their losses and times compare with nothing; allowed: local_sgd (strategy.period=8 "
    "exchanges every 8 steps) or another of docs/strategies.md"
)


def _explain_list(said: str) -> str | None:
    """Several values without -m; Hydra explains its grammar."""
    found = re.search(r"Ambiguous value for argument '(.+?)'|Sweep parameters '(.+?)' req", said)
    if found is None:
        return None
    key, _, value = (found[1] or found[2]).partition("=")
    together = f"{key}=[{value}] for all at once, " if key == "callbacks" else ""
    return (
        f"{key}: found {value!r} without -m; allowed: one value, {together}or -m {key}={value} for "
        "a cell of each"
    )


_ELSEWHERE = words_beside(__file__, dict[str, str])
"""Keys of other programs that have another name here."""
_MOST_KEYS = 20
"""That one line can list."""


def _explain_unknown_key(error: Any, said: str) -> str | None:
    """OmegaConf knows which keys there are and does not say."""
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import ConfigAttributeError, ConfigKeyError

    if not isinstance(error, (ConfigAttributeError, ConfigKeyError)) or not error.full_key:
        return None
    parent, key = error.parent_node, str(error.full_key)
    plain: Any = OmegaConf.to_container(parent) if isinstance(parent, DictConfig) else {}
    allowed = [str(name) for name in plain if name != "hydra"]
    # The whole of what was typed: of trainer.max_steps, OmegaConf names the first part.
    typed = re.search(r"Could not override '(.+?)'", said)
    name = key if typed is None or "." in key else typed[1]
    last = name.rpartition(".")[2]
    if "." not in key:
        meant = sorted(_paths_to(_ELSEWHERE.get(last, last), plain), key=lambda path: "." in path)
        if meant:
            exact = meant[:1] if "." not in meant[0] else meant[:3]
            # What is typed after it was not read yet.
            words = {key_of(word): word.partition("=")[2] for word in sys.argv}
            own = words.get("model._target_") or plain.get("model", {}).get("_target_", "")
            if exact[0].startswith("optimizer.") and own and not own.startswith("scalewise."):
                exact.insert(0, f"model.{last} if {own} takes it,")
            return f"{name}: unknown key; allowed: {' or '.join(exact)}"
    also = [f"or +{name}=VALUE if its class takes it"] if "_target_" in allowed else []
    few = len(allowed) <= _MOST_KEYS
    told = ", ".join(allowed + also) if few else "the keys that --cfg job shows"
    return f"{name}: unknown key{closest(last, allowed)}{told and f'; allowed: {told}'}"


def _paths_to(name: str, plain: Mapping[Any, Any], above: str = "") -> Iterator[str]:
    """The dotted keys that end in ``name``."""
    if name in plain:
        yield f"{above}{name}"
    for key, value in plain.items():
        if isinstance(value, Mapping) and key != "hydra":
            yield from _paths_to(name, value, f"{above}{key}.")
