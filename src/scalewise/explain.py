"""What is wrong with the input, in one line that names the key, for errors of any origin."""

from __future__ import annotations

import errno
import re
import sys
import traceback
from collections.abc import Iterator
from typing import Any

from scalewise.config import ConfigError
from scalewise.errors import escaped, first_line, in_one_line
from scalewise.paths import conf_dir
from scalewise.records import RecordError

_NO_NAME = re.compile(r"null|true|false|[-+.\d].*|\{.*", re.IGNORECASE)
"""What Hydra's grammar reads as anything but text."""
_PARSERS_WORDS = re.compile(r" expecting \{[^}]*\}| See https://\S+ for details")
"""A list of the grammar's tokens, and a page about the grammar: no help to who mistyped a word."""


def options_of(group: str) -> list[str]:
    """The options of a config group; none where there is no such group."""
    return sorted(path.stem for path in (conf_dir() / group).glob("*.yaml")) if group else []


def explain(error: BaseException) -> str | None:
    """What is wrong with the input, in one line; None if the input is not to blame.

    What of it the user typed, control characters too, is written so that it stays one.
    """
    text = _explanation(error)
    return None if text is None else escaped(text)


def _explanation(error: BaseException) -> str | None:
    from hydra.errors import HydraException, MissingConfigException, OverrideParseException
    from omegaconf.errors import OmegaConfBaseException

    if isinstance(error, (ConfigError, RecordError)):  # such as a torn plan of a resumed sweep
        return str(error)
    if isinstance(error, OSError) and _refuses_the_folder(error):
        return (
            f"hydra.sweep.dir: {error.filename} cannot be made: {error.strerror}; allowed: a "
            "folder that can be written, hydra.sweep.dir=FOLDER (hydra.run.dir without -m)"
        )
    if isinstance(error, OSError) and is_the_hosts_fault(error):
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, MissingConfigException):
        return _explain_missing(error)
    if isinstance(error, OverrideParseException):
        why = _PARSERS_WORDS.sub("", in_one_line(error))
        return f"{error.override}: not an override ({why}); allowed: key=value"
    if isinstance(error, (AttributeError, AssertionError)) and (line := _explain_unset(error)):
        return line
    if isinstance(error, (HydraException, OmegaConfBaseException)):
        for cause in _causes(error):
            if isinstance(cause, OmegaConfBaseException) and cause.full_key:
                return _explain_override(cause) or _explain_key(cause)
        return in_one_line(error)
    if isinstance(error, (ValueError, RuntimeError)) and _is_hydras(error):
        # Hydra refuses some input, such as model=3, with a bare ValueError.
        return _explain_group() or in_one_line(error)
    if isinstance(error, (ValueError, TypeError, AssertionError)) and _is_optunas(error):
        return f"hydra/sweeper=optuna: {in_one_line(error)}"
    return None


def is_the_hosts_fault(error: BaseException) -> bool:
    """A full disk or a folder that is not the user's: said in one line, like wrong input."""
    if _refuses_the_folder(error):
        return False
    return isinstance(error, OSError) and error.errno in (
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EFBIG,  # ulimit -f
        errno.EROFS,
        errno.EACCES,
        errno.ENAMETOOLONG,
        errno.ENOTDIR,
        errno.ENOENT,  # the sweep's folder was moved away while it ran
    )


_NO_PLACE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENOENT, errno.EEXIST)


def _refuses_the_folder(error: BaseException) -> bool:
    """Hydra could not make the folder of the run or the sweep, so that nothing has begun."""
    if not isinstance(error, OSError) or error.errno not in _NO_PLACE:
        return False
    frames = [
        str(f.f_globals.get("__name__", "")) for f, _ in traceback.walk_tb(error.__traceback__)
    ]
    makers = [name for name in frames if name.partition(".")[0] not in ("pathlib", "os", "io")]
    return bool(makers) and makers[-1].partition(".")[0] == "hydra"


def _raised_in(error: BaseException) -> str:
    """The module of the innermost frame."""
    module = ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module = str(frame.f_globals.get("__name__", ""))
    return module


def _is_hydras(error: BaseException) -> bool:
    return _raised_in(error).partition(".")[0] == "hydra"


def _is_optunas(error: BaseException) -> bool:
    """Raised by Optuna, or by Hydra's sweeper of that name, while neither runs our launcher."""
    modules = [
        str(f.f_globals.get("__name__", "")) for f, _ in traceback.walk_tb(error.__traceback__)
    ]
    asked = [m.startswith("hydra_plugins.hydra_optuna_sweeper.") for m in modules]
    return any(asked) and modules[-1].partition(".")[0] in ("optuna", "hydra_plugins")


def _explain_unset(error: BaseException) -> str | None:
    """The override that Hydra could not lay over a null, which it answers with a bare error."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        override = frame.f_locals.get("override")
        if frame.f_code.co_name != "_apply_overrides_to_config" or override is None:
            continue
        key = str(override.key_or_group)
        allowed = "to set it in a configuration file"
        if key.startswith(("hydra.sweeper.params", "hydra.sweeper.search_space")):
            allowed = "each parameter as an override, such as 'batch_size=choice(8,16)'"
        node = ".".join(key.split(".")[:3])
        return (
            f"{node}: found {override.input_line!r}, which Hydra cannot set on the command line, "
            f"where it stands at null; allowed: {allowed}"
        )
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__ or current.__context__


def _explain_missing(error: Any) -> str:
    missing = str(error.missing_cfg_file or "")
    group, _, option = missing.rpartition("/")
    options = sorted(o for o in (error.options or []))
    if not group or not options:
        return in_one_line(error)
    from scalewise.typed import closest

    return f"{group}: found {option!r}{closest(option, options)}; allowed: {', '.join(options)}"


def _explain_group() -> str | None:
    """The group whose value on the command line is no name at all, which Hydra does not tell."""
    for word in sys.argv[1:]:
        key, _, value = word.partition("=")
        options = options_of(key)
        if options and _NO_NAME.fullmatch(value):
            return f"{key}: found {value}; allowed: {', '.join(options)}"
    return None


def _explain_override(error: Any) -> str | None:
    """The override whose ``${...}`` leads nowhere, where Hydra blames the folder for it.

    ``conf/config.yaml`` derives the folder from the list of all overrides, so that resolving the
    folder resolves each of them, before the keys that they set.
    """
    if error.full_key not in _FOLDERS:
        return None
    said = first_line(error, with_class=False)
    references = {word: _REFERENCE.findall(word) for word in sys.argv[1:]}
    suspects = [word for word, found in references.items() if found]
    # Of several, one whose reference the error names.
    named = set(_NAME.findall(said))
    suspects.sort(key=lambda word: named.isdisjoint(_NAME.findall(" ".join(references[word]))))
    if not suspects:
        return None
    key, _, value = suspects[0].partition("=")
    return (
        f"{key}: found {value!r}: {said}; allowed: the dotted name of a key that there is, such "
        "as ${model.name}"
    )


_FOLDERS = ("hydra.run.dir", "hydra.sweep.dir")
_REFERENCE = re.compile(r"\$\{([^}]*)")
_NAME = re.compile(r"[\w.]+")


def _explain_key(error: Any) -> str:
    from omegaconf import DictConfig
    from omegaconf.errors import ConfigAttributeError, ConfigKeyError

    from scalewise.typed import closest

    key = str(error.full_key)
    if isinstance(error, (ConfigAttributeError, ConfigKeyError)):
        parent = error.parent_node
        allowed = [str(k) for k in parent] if isinstance(parent, DictConfig) else []
        name = key.rpartition(".")[2]
        hint = f"; allowed: {', '.join(allowed)}" if allowed else ""
        return f"{key}: unknown key{closest(name, allowed)}{hint}"
    return f"{key}: {in_one_line(error)}"
