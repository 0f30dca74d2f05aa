"""Which combinations a sweep is made of: unions of grids.

All of it is text as it would stand on the command line: ``model=medium batch_size=8,16``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice, product

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override

from scalewise.config import MAX_CELLS, TOO_MANY_CELLS, ConfigError, spelled


def texts(given: object) -> tuple[str, ...]:
    """``hydra.sweeper.grids``: a list of texts, or one alone. Raises :class:`ConfigError`."""
    if given is None:
        return ()
    if isinstance(given, str):
        return (given,)
    if isinstance(given, Sequence) and all(isinstance(text, str) for text in given):
        return tuple(given)
    raise ConfigError(
        f'hydra.sweeper.grids: found {given!r}; allowed: a list of texts, ["KEY=VALUE ..."]'
    )


Options = Mapping[str, Sequence[str]]
"""Key to the values it takes, as text; a key that is fixed has one."""


def combinations(
    grids: Sequence[str],
    params: Mapping[str, object],
    typed: Sequence[str],
    parser: OverridesParser,
) -> list[list[str]]:
    """The overrides of every job, in the order of the grids; what grids share is there once.

    A value that is given twice in one of them (``seed=1,1``) makes two jobs: it is the launcher
    that folds them and says so, for every sweeper alike.

    Each of ``grids`` is a row of overrides beside ``params``, those of every grid; none is one grid
    of nothing. ``typed`` is the command line, which has the last word on every key.

    Raises :class:`ConfigError` where they are more than :data:`MAX_CELLS`: before all of them are
    written down.
    """
    every = [
        _options(parser.parse_overrides([*(f"{k}={v}" for k, v in params.items()), *row, *typed]))
        for row in ([list(map(spelled, grid.split())) for grid in grids] or [[]])
    ]
    jobs: list[tuple[str, ...]] = []
    for options in every:
        earlier = set(jobs)
        for chosen in product(*options.values()):
            job = tuple(f"{key}={value}" for key, value in zip(options, chosen, strict=True))
            if job not in earlier:
                jobs.append(job)
            if len(jobs) > MAX_CELLS:
                raise ConfigError(TOO_MANY_CELLS.format("more"))
    return [list(job) for job in jobs]


def _options(overrides: Sequence[Override]) -> Options:
    options: dict[str, list[str]] = {}
    for override in overrides:
        key = override.get_key_element()
        if not override.is_sweep_override():
            options[key] = [override.get_value_element_as_str()]
        elif override.is_discrete_sweep():
            # A long range is not written down.
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
