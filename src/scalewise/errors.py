"""What a user typed wrong, as one line, and the exit status that goes with it."""

from __future__ import annotations

import re

EXIT_CONFIG_ERROR = 2

_BREAKS_THE_LINE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
"""Control characters, and what else ends a line: none of them is meant to reach a terminal."""


def one_line(text: str) -> str:
    """``text`` with its control characters written as Python does: a newline is ``\\n``."""
    return _BREAKS_THE_LINE.sub(lambda found: repr(found[0])[1:-1], text)


class ConfigError(ValueError):
    """Wrong input: one line with the key, what was found and what is allowed."""

    def __str__(self) -> str:
        return one_line(super().__str__())
