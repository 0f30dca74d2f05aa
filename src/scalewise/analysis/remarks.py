"""What a reader must know before trusting a figure: remarks, and their words.

A rule leaves a code and its figures. A sentence is made of remarks.toml when it is printed.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from scalewise.analysis.figures import factor
from scalewise.records import words_beside

Gravity = Literal["invalid", "undecided", "doubt", "note"]
"""*invalid*: a figure means nothing; *undecided*: no verdict may rest on it; *doubt*: it may be
other than it seems; *note*: what it is, or what it cannot tell."""


@dataclass(frozen=True)
class Kind:
    """The words of a code: templates of its figures."""

    gravity: Gravity
    brief: str
    """The same for every run that it holds of: a terminal shows it alone."""
    more: str = ""
    """What a report adds."""


WORDS: Final = words_beside(__file__, dict[str, Kind])
"""Every code, the gravest first: a terminal names the first that concerns a configuration."""


class _Words(string.Formatter):
    """Templates that write a ratio as tables do, ``{speedup:factor}``, and a code in words."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec == "factor":
            return factor(value)
        if format_spec == "words":
            return str(value).replace("_", " ")
        return str(super().format_field(value, format_spec))


@dataclass(frozen=True)
class Remark:
    """What a rule found."""

    code: str
    figures: Mapping[str, Any] = field(default_factory=dict)
    """By the names in the words of the code; what has no number in words."""
    about: str = ""
    """``config_id`` of whose figures it speaks; empty: the whole sweep's."""
    run: str = ""
    """The cell's name, where it holds of one run."""

    @property
    def gravity(self) -> Gravity:
        return WORDS[self.code].gravity

    @property
    def brief(self) -> str:
        """In a few words, for a terminal."""
        return _Words().vformat(WORDS[self.code].brief, (), self.figures)

    @property
    def text(self) -> str:
        more = _Words().vformat(WORDS[self.code].more, (), self.figures)
        return f"{self.brief}: {more}" if more else self.brief
