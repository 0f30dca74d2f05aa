"""Which combinations a sweep is made of: unions of grids, exclusions, filters, dependent options.

All of it is text as it would stand on the command line: ``model=medium batch_size=8,16``. A rule
is tried as soon as the keys it names have their values, so that what it forbids is never
multiplied out.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override

from scalewise.config import MAX_CELLS, ConfigError, too_many_cells


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
    """Rules for the combinations of a sweep.

    ``exclude`` drops what matches any of it, ``only`` keeps what matches any of it. ``allow`` is
    an option and what it needs: a combination with the first is kept only with the second.
    """

    exclude: tuple[Pattern, ...] = ()
    only: tuple[Pattern, ...] = ()
    allow: tuple[tuple[Pattern, Pattern], ...] = ()

    def named(self) -> Iterator[tuple[str, str, Sequence[str]]]:
        """Every rule in words, with each key that it names and the values it gives it."""
        both = [("exclude", p) for p in self.exclude] + [("only", p) for p in self.only]
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


Options = Mapping[str, Sequence[str]]
"""Key to the values it takes, as text; a key that is fixed has one."""


def combinations(
    grids: Sequence[str], params: Mapping[str, object], typed: Sequence[str], rule: Rules,
    parser: OverridesParser, max_cells: int = MAX_CELLS,
) -> list[list[str]]:  # fmt: skip
    """The overrides of every job, in the order of the grids; what grids share is there once.

    A value that is given twice in one of them (``seed=1,1``) makes two jobs: it is the launcher
    that folds them and says so, for every sweeper alike.

    Each of ``grids`` is a row of overrides beside ``params``, those of every grid; none is one grid
    of nothing. ``typed`` is the command line, which has the last word on every key.

    Raises :class:`ConfigError` for a rule about a key that nothing sets, where nothing is left, and
    where more is left than ``max_cells``: before it is all written down.
    """
    every = [
        _options(
            parser.parse_overrides([*(f"{k}={v}" for k, v in params.items()), *row, *typed]),
            max_cells,
        )
        for row in ([grid.split() for grid in grids] or [[]])
    ]
    known: dict[str, set[str]] = {}
    for options in every:
        for key, values in options.items():
            known.setdefault(key, set()).update(values)
    for who, key, wanted in rule.named():
        _check_named(who, key, wanted, known)
    jobs: list[tuple[str, ...]] = []
    for options in every:
        earlier = set(jobs)
        for chosen in _kept(options, rule):
            job = tuple(f"{key}={value}" for key, value in chosen.items())
            if job not in earlier:
                jobs.append(job)
            if len(jobs) > max_cells:
                raise ConfigError(too_many_cells("more", max_cells))
    if not jobs:
        raise ConfigError(
            "hydra.sweeper: exclude, only and allow leave nothing to run; loosen one of them"
        )
    return [list(job) for job in jobs]


def _check_named(who: str, key: str, wanted: Sequence[str], known: Mapping[str, set[str]]) -> None:
    """Refuse a rule about what this sweep does not have: it would do nothing, and say nothing."""
    if key not in known:
        raise ConfigError(
            f"hydra.sweeper: {who} names {key}, which this sweep does not set; add it to the "
            f"command line or a grid (set here: {', '.join(sorted(known)) or 'nothing'})"
        )
    for value in wanted:
        if not any(fnmatch.fnmatchcase(found, value) for found in known[key]):
            raise ConfigError(
                f"hydra.sweeper: {who} names {key}={value}, which no cell has; allowed: "
                f"{', '.join(sorted(known[key]))}"
            )


def _options(overrides: Sequence[Override], max_cells: int) -> Options:
    options: dict[str, list[str]] = {}
    for override in overrides:
        key = override.get_key_element()
        if not override.is_sweep_override():
            options[key] = [override.get_value_element_as_str()]
        elif override.is_discrete_sweep():
            # Rules may drop most of a short range; a long one is not written down.
            most = max(max_cells, MAX_CELLS)
            options[key] = list(islice(override.sweep_string_iterator(), most + 1))
            if not 1 <= len(options[key]) <= most:
                found = f"{len(options[key])} values or more ({override.input_line})"
                raise ConfigError(f"{key}: found {found}; allowed: 1 to {most:,}")
        else:
            raise ConfigError(
                f"{key}: found a range to search in; allowed: values, choice(...) or range(...) "
                "(hydra/sweeper=optuna searches)"
            )
    return options


def _kept(options: Options, rule: Rules) -> Iterator[dict[str, str]]:
    """Every combination that no rule forbids, key by key."""
    keys = list(options)

    def extend(chosen: dict[str, str], depth: int) -> Iterator[dict[str, str]]:
        if rule.forbid(chosen, frozenset(keys[depth:])):
            return
        if depth == len(keys):
            yield chosen
            return
        for value in options[keys[depth]]:
            yield from extend({**chosen, keys[depth]: value}, depth + 1)

    return extend({}, 0)
