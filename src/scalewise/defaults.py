"""A named configuration as the default of the runs to come: ``.defconfig`` in the working folder.

``make defconfig-NAME`` writes it. Each line is an override, as on the command line; what is typed
there wins, key by key.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scalewise.errors import ConfigError
from scalewise.paths import conf_dir
from scalewise.tracking.config import TrackingConfig
from scalewise.validation import DataError, build, closest

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
