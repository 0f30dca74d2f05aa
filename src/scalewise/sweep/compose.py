"""Says which jobs a sweep has, and composes them: Hydra once for each choice of groups, then each
job's values.

Hydra takes 90 ms to compose one configuration, mostly to find and merge the same files again. Most
jobs differ in a value (``seed=3``), which Hydra itself sets last, in what it has composed.
"""

from __future__ import annotations

import functools
import pickle
import secrets
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice, product
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf, open_dict

from scalewise.config import (
    ENDS,
    MAX_CELLS,
    TOO_MANY_CELLS,
    ConfigError,
    open_keys,
    resolve,
    spelled,
)
from scalewise.records import SweepFolder


@functools.cache
def _new_folder() -> str:
    # Two sweeps in one second must not share a folder, and one process must not get two.
    return f"multirun/{time.strftime('%Y-%m-%d_%H-%M-%S')}-{secrets.token_hex(2)}"


def discard_unused_folder(typed: Iterable[Path] = ()) -> None:
    """Remove the new sweep folder if no sweep was begun in it; a ``typed`` one if it is empty.

    Hydra makes it, and writes its own files there, before anybody has looked at the input.
    """
    for path in typed:
        with suppress(OSError):  # it was not made, or has something in it
            path.rmdir()
    if not _new_folder.cache_info().currsize:
        return
    folder = Path(_new_folder())
    if folder.is_dir() and not SweepFolder(folder).plan_path.exists():
        shutil.rmtree(folder)


def sweep_folder(overrides: Sequence[str]) -> str:
    """The folder ``sweep.resume=`` names among the overrides, else a new one below ``multirun/``.

    It is the OmegaConf resolver ``scalewise_folder`` of ``conf/config.yaml``.
    """
    for override in overrides:
        key, _, value = override.partition("=")
        value = value.strip("'\"").replace(r"\'", "'")
        # Any other value is refused once the whole configuration is known.
        if key.lstrip("+") == "sweep.resume" and SweepFolder(value).plan_path.exists():
            return value
    return _new_folder()


class Composer:
    """The configurations of one sweep; ``master`` is the one that Hydra composed for itself."""

    def __init__(self, master: DictConfig, context: HydraContext) -> None:
        self._master = master
        self._loader: Any = context.config_loader
        self._parser = OverridesParser.create(config_loader=self._loader)
        self._parsed: dict[str, tuple[Override, bool]] = {}
        self._bases: dict[tuple[str, ...], tuple[bytes, tuple[str, ...]]] = {}
        """By the choices of groups, with the keys that the experiment file sets. To unpickle one
        takes less than half of the time of a deep copy."""

    def compose(self, overrides: Sequence[str]) -> DictConfig:
        """One job's configuration by Hydra itself. Raises ConfigError or one of Hydra's errors."""
        config: DictConfig = self._loader.load_sweep_config(self._master, list(overrides))
        if config.hydra.sweeper != self._master.hydra.sweeper:
            raise ConfigError(
                "experiment: found one with hydra.sweeper settings of its own among several, where "
                "Hydra ignores them; run it alone: -m experiment=NAME"
            )
        chosen = self._chooses_launcher(config)
        if chosen or config.hydra.launcher != self._master.hydra.launcher:
            raise ConfigError(
                f"hydra/launcher: found one inside {chosen or 'a swept config'}, where Hydra "
                "ignores it; allowed: on the command line: hydra/launcher=NAME"
            )
        return config

    def plain(self, overrides: Sequence[str], number: int) -> dict[str, Any]:
        """One job's configuration as plain data, without ``hydra``: what ``compose`` gives."""
        parsed = [self._parse(text) for text in open_keys(overrides)]
        values = [override for override, is_value in parsed if is_value]
        choices = tuple(o.input_line or "" for o, is_value in parsed if not is_value)
        if choices not in self._bases:
            base = self.compose(choices)
            written = written_keys(self._loader, base.hydra.runtime)
            self._bases[choices] = pickle.dumps(base), written
        config = pickle.loads(self._bases[choices][0])
        with open_dict(config):
            config.hydra.job.id, config.hydra.job.num = str(number), number
        self._loader._apply_overrides_to_config(values, config)
        return resolve(config, config.hydra.runtime.choices)

    def written(self, overrides: Sequence[str]) -> tuple[str, ...]:
        """The keys that the experiment file of a job sets; ask after :meth:`plain`."""
        parsed = [self._parse(text) for text in open_keys(overrides)]
        return self._bases[tuple(o.input_line or "" for o, is_value in parsed if not is_value)][1]

    def _parse(self, text: str) -> tuple[Override, bool]:
        """An override, and whether it only sets a value; jobs share most of theirs."""
        if text not in self._parsed:
            override = self._parser.parse_override(text)
            self._parsed[text] = (override, self._is_value(override))
        return self._parsed[text]

    def _is_value(self, override: Override) -> bool:
        """It chooses no option of a group, and nothing of Hydra's own."""
        key = override.key_or_group
        return (
            override.package is None
            and not override.is_sweep_override()
            and key.partition(".")[0] != "hydra"
            and not self._loader.repository.group_exists(key)
        )

    def _chooses_launcher(self, config: DictConfig) -> str | None:
        """``group=option`` of a chosen config whose defaults list names a launcher, if one does.

        Hydra composes it without a trace of that choice.
        """
        for group, option in config.hydra.runtime.choices.items():
            path = f"{str(group).partition('@')[0]}/{option}"
            exists = self._loader.repository.config_exists(path)
            listed = self._loader.repository.load_config(path).defaults_list if exists else None
            names = [getattr(one, "group", None) or "" for one in listed or () if one.is_override()]
            if any(name.lstrip("/") == "hydra/launcher" for name in names):
                return f"{group}={option}"
        return None


def written_keys(loader: Any, runtime: Any) -> tuple[str, ...]:
    """``model._target_``, ``max_steps`` and their like: what the chosen experiment file sets.

    ``runtime`` is ``hydra.runtime`` of the composed configuration.
    """
    config = _experiment(loader, runtime) or DictConfig({})
    groups = [(name, config.get(name)) for name in ("model", "dataset", "optimizer")]
    of_groups = (
        f"{name}.{key!s}" for name, node in groups if isinstance(node, DictConfig) for key in node
    )
    return *of_groups, *(
        key for key in (*ENDS, "scaling") if OmegaConf.select(config, key) is not None
    )


def _experiment(loader: Any, runtime: Any) -> DictConfig | None:
    option = runtime.choices.get("experiment")
    path = f"experiment/{option}"
    if option is None:
        return None
    if loader.repository.config_exists(path):
        found: DictConfig = loader.repository.load_config(path).config
        return found
    # Hydra looks through hydra.searchpath while it composes, and forgets it.
    for source in runtime.config_sources:
        file = Path(str(source.path)) / f"{path}.yaml"
        if source.schema == "file" and file.is_file():
            loaded = OmegaConf.load(file)
            return loaded if isinstance(loaded, DictConfig) else None
    return None


# Which jobs a sweep is made of: unions of grids, all of it text as on the command line.


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


def _options(overrides: Sequence[Override]) -> dict[str, list[str]]:
    """Key to the values it takes, as text; a key that is fixed has one."""
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
