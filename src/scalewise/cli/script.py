"""``scalewise run`` in the words of ``scalewise train``: a script is an experiment like others."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from scalewise.config import ConfigError, ScriptConfig


def words_of(
    command: Sequence[str],
    devices: str,
    time_s: str | None,
    repeats: str,
    settings: Sequence[str] = (),
    rehearse: str | None = None,
    link: str | None = None,
) -> list[str]:
    """The overrides that ask for ``command`` on each number of ``devices``, and of ``rehearse``.

    Raises :class:`ConfigError` for a command that cannot be watched, and for what is no number.
    """
    for option, typed in (("devices", devices), ("rehearse", rehearse or devices)):
        if not re.fullmatch(r"\d+(,\d+)*", typed):
            raise ConfigError(f"--{option}: found {typed!r}; allowed: numbers, as 1,2")
    if link is not None and rehearse is None:
        raise ConfigError(f"--link: found {link} without --rehearse; allowed: --rehearse 2,4 too")
    if repeats != "auto" and not repeats.isdecimal():
        raise ConfigError(f"--repeats: found {repeats!r}; allowed: auto, or a number")
    script = ScriptConfig(shlex.join(command))
    return [
        "-m",
        "experiment=script",
        f"script.command={quoted(script.command)}",
        f"model.name={quoted(script.name)}",
        f"devices={devices if rehearse is None else _each(f'{devices},{rehearse}')}",
        *([] if rehearse is None else _over(link or "auto")),
        # Left out, rounds are added until it is decided, within a budget.
        *([] if repeats == "auto" else [f"repeats={repeats}"]),
        *([] if time_s is None else [f"measure.min_time_s={_seconds(time_s)}"]),
        *settings,
    ]


def _each(numbers: str) -> str:
    return ",".join(map(str, sorted(set(map(int, numbers.split(","))))))


def _over(link: str) -> list[str]:
    """A link by its name, or the record of an examination."""
    if link.endswith(".json"):
        return ["rehearse=doctor", f"rehearse.record={quoted(link)}"]
    return [f"rehearse={link}"]


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
    seconds = float(number[1]) * (60 if number[2] in ("m", "min") else 1)
    return f"{seconds:g}"
