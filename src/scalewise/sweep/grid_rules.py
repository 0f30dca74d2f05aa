"""What the combinations of a sweep must and must not be, as it is typed."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from scalewise.config import ConfigError


@dataclass(frozen=True)
class Pattern:
    """``model=large strategy=ddp,fsdp*``: each key must match one of its values."""

    text: str
    values: Mapping[str, tuple[str, ...]]

    def holds(self, chosen: Mapping[str, str]) -> bool:
        """Whether every key has a value that matches. A key without a value matches nothing."""
        return all(
            key in chosen and any(fnmatch.fnmatchcase(chosen[key], v) for v in wanted)
            for key, wanted in self.values.items()
        )


@dataclass(frozen=True)
class Rules:
    """What a combination must and must not be.

    ``exclude`` drops what matches any of it, ``only`` keeps what matches any of it. ``allow`` is
    an option and what it needs: a combination with the first is kept only with the second.
    """

    exclude: tuple[Pattern, ...] = ()
    only: tuple[Pattern, ...] = ()
    allow: tuple[tuple[Pattern, Pattern], ...] = ()

    def named(self) -> Iterator[tuple[str, str, Sequence[str]]]:
        """Every rule in words, with each key that it names and the values it gives it."""
        both = [(kind, p) for kind, ps in (("exclude", self.exclude), ("only", self.only))
                for p in ps]  # fmt: skip
        both += [("allow", p) for pair in self.allow for p in pair]
        for kind, rule in both:
            for key, values in rule.values.items():
                yield f"{kind} {rule.text!r}", key, values

    def forbid(self, chosen: Mapping[str, str], undecided: frozenset[str]) -> bool:
        """Whether no combination that begins with ``chosen`` can be kept."""
        if any(p.holds(chosen) for p in self.exclude):
            return True
        for option, needs in self.allow:
            if option.holds(chosen) and not _possible(needs, chosen, undecided):
                return True
        return bool(self.only) and not any(_possible(p, chosen, undecided) for p in self.only)


def _possible(pattern: Pattern, chosen: Mapping[str, str], undecided: frozenset[str]) -> bool:
    """Whether it holds, as far as keys have their values."""
    decided = {k: v for k, v in pattern.values.items() if k not in undecided}
    return Pattern(pattern.text, decided).holds(chosen)


def pattern(where: str, text: object) -> Pattern:
    """Read one rule. Raises :class:`ConfigError`."""
    values: dict[str, tuple[str, ...]] = {}
    for word in str(text).split():
        key, equals, value = word.partition("=")
        if not equals or not key or not value:
            raise ConfigError(
                f"hydra.sweeper.{where}: found {word!r} in {text!r}; allowed: KEY=VALUE, with "
                "commas between values and spaces between keys"
            )
        values[key] = tuple(value.split(","))
    if not values:
        raise ConfigError(f"hydra.sweeper.{where}: found {text!r}; allowed: KEY=VALUE ...")
    return Pattern(str(text), values)


def _dependency(text: object) -> tuple[Pattern, Pattern]:
    option, word, needs = str(text).partition(" with ")
    if not word:
        raise ConfigError(
            f"hydra.sweeper.allow: found {text!r}; allowed: OPTION=VALUE with KEY=VALUE ..."
        )
    return pattern("allow", option), pattern("allow", needs)


def texts(where: str, given: object) -> tuple[str, ...]:
    """A list of texts, or one text alone. Raises :class:`ConfigError`."""
    if given is None:
        return ()
    if isinstance(given, str):
        return (given,)
    if isinstance(given, Sequence) and all(isinstance(text, str) for text in given):
        return tuple(given)
    raise ConfigError(
        f'hydra.sweeper.{where}: found {given!r}; allowed: a list of texts, ["KEY=VALUE ..."]'
    )


def rules(
    exclude: Sequence[str] | None, only: Sequence[str] | None, allow: Sequence[str] | None
) -> Rules:
    """The sweeper's settings as rules. Raises :class:`ConfigError`."""
    return Rules(
        tuple(pattern("exclude", text) for text in texts("exclude", exclude)),
        tuple(pattern("only", text) for text in texts("only", only)),
        tuple(_dependency(text) for text in texts("allow", allow)),
    )
