"""Which combinations a sweep is made of: unions of grids, less what is excluded.

All of it is text as it would stand on the command line: ``model=medium batch_size=8,16``. What
is excluded is left out as soon as its keys have their values, and never multiplied out.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override

from scalewise.config import MAX_CELLS, TOO_MANY_CELLS, ConfigError


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


def patterns(given: object) -> tuple[Pattern, ...]:
    """The combinations that ``hydra.sweeper.exclude`` drops. Raises :class:`ConfigError`."""
    return tuple(map(_pattern, texts("exclude", given)))


def _pattern(text: str) -> Pattern:
    values: dict[str, tuple[str, ...]] = {}
    for word in text.split():
        key, equals, value = word.partition("=")
        if not equals or not key or not value:
            raise ConfigError(
                f"hydra.sweeper.exclude: found {word!r} in {text!r}; allowed: KEY=VALUE, with "
                "commas between values and spaces between keys"
            )
        values[key] = tuple(value.split(","))
    if not values:
        raise ConfigError(f"hydra.sweeper.exclude: found {text!r}; allowed: KEY=VALUE ...")
    return Pattern(text, values)


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


Options = Mapping[str, Sequence[str]]
"""Key to the values it takes, as text; a key that is fixed has one."""


def combinations(
    grids: Sequence[str], params: Mapping[str, object], typed: Sequence[str],
    excluded: Sequence[Pattern], parser: OverridesParser,
) -> list[list[str]]:  # fmt: skip
    """The overrides of every job, in the order of the grids; what grids share is there once.

    A value that is given twice in one of them (``seed=1,1``) makes two jobs: it is the launcher
    that folds them and says so, for every sweeper alike.

    Each of ``grids`` is a row of overrides beside ``params``, those of every grid; none is one grid
    of nothing. ``typed`` is the command line, which has the last word on every key.

    Raises :class:`ConfigError` for an exclusion by a key that nothing sets, where nothing is left,
    and where more is left than :data:`MAX_CELLS`: before it is all written down.
    """
    every = [
        _options(parser.parse_overrides([*(f"{k}={v}" for k, v in params.items()), *row, *typed]))
        for row in ([grid.split() for grid in grids] or [[]])
    ]
    known: dict[str, set[str]] = {}
    for options in every:
        for key, values in options.items():
            known.setdefault(key, set()).update(values)
    for pattern in excluded:
        _check_named(pattern, known)
    jobs: list[tuple[str, ...]] = []
    for options in every:
        earlier = set(jobs)
        for chosen in _kept(options, excluded):
            job = tuple(f"{key}={value}" for key, value in chosen.items())
            if job not in earlier:
                jobs.append(job)
            if len(jobs) > MAX_CELLS:
                raise ConfigError(TOO_MANY_CELLS.format("more"))
    if not jobs:
        raise ConfigError("hydra.sweeper.exclude leaves nothing to run; loosen it")
    return [list(job) for job in jobs]


def _check_named(pattern: Pattern, known: Mapping[str, set[str]]) -> None:
    """Refuse what excludes nothing that this sweep has: it would do nothing, and say nothing."""
    who = f"hydra.sweeper: exclude {pattern.text!r} names"
    for key, wanted in pattern.values.items():
        if key not in known:
            raise ConfigError(
                f"{who} {key}, which this sweep does not set; add it to the command line or a grid "
                f"(set here: {', '.join(sorted(known)) or 'nothing'})"
            )
        for value in wanted:
            if not any(fnmatch.fnmatchcase(found, value) for found in known[key]):
                allowed = ", ".join(sorted(known[key]))
                raise ConfigError(f"{who} {key}={value}, which no cell has; allowed: {allowed}")


def _options(overrides: Sequence[Override]) -> Options:
    options: dict[str, list[str]] = {}
    for override in overrides:
        key = override.get_key_element()
        if not override.is_sweep_override():
            options[key] = [override.get_value_element_as_str()]
        elif override.is_discrete_sweep():
            # What is excluded may be most of a short range; a long one is not written down.
            options[key] = list(islice(override.sweep_string_iterator(), MAX_CELLS + 1))
            if not 1 <= len(options[key]) <= MAX_CELLS:
                found = f"{len(options[key])} values or more ({override.input_line})"
                raise ConfigError(f"{key}: found {found}; allowed: 1 to {MAX_CELLS:,}")
        else:
            raise ConfigError(
                f"{key}: found a range to search in; allowed: values, choice(...) or range(...) "
                "(hydra/sweeper=optuna searches)"
            )
    return options


def _kept(options: Options, excluded: Sequence[Pattern]) -> Iterator[dict[str, str]]:
    """Every combination that is not excluded, key by key."""
    keys = list(options)

    def extend(chosen: dict[str, str], depth: int) -> Iterator[dict[str, str]]:
        if any(pattern.holds(chosen) for pattern in excluded):
            return
        if depth == len(keys):
            yield chosen
            return
        for value in options[keys[depth]]:
            yield from extend({**chosen, keys[depth]: value}, depth + 1)

    return extend({}, 0)
