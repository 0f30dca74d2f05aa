"""Requests as a command with these overrides makes them."""

import functools
import pickle
from collections.abc import Sequence
from typing import Any

from hydra._internal.callbacks import Callbacks
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import create_config_search_path
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.singleton import Singleton
from hydra.types import HydraContext, RunMode
from omegaconf import OmegaConf

from scalewise.config import as_typed, conf_dir, keep_known_keys, open_keys, place_on_devices
from scalewise.sweep import sweep_folder
from scalewise.sweep.compose import Composer, combinations
from scalewise.sweep.plan import Request, request
from scalewise.sweep.preflight import take_own_batches


@functools.cache
def composer(*experiments: str) -> Composer:
    """Composes as a sweep with these ``experiments`` does: Hydra once for each choice of groups."""
    OmegaConf.register_new_resolver("scalewise_folder", sweep_folder, replace=True)
    state = Singleton.get_state()
    loader = ConfigLoaderImpl(create_config_search_path(str(conf_dir())))
    load = loader.repository.load_config
    parsed = functools.cache(lambda path: pickle.dumps(load(path)))
    # Hydra merges without copying: what it was given is no longer what the file says.
    loader.repository.load_config = lambda config_path: pickle.loads(parsed(config_path))
    master = loader.load_configuration("config", list(experiments), RunMode.MULTIRUN)
    Singleton.set_state(state)
    return Composer(master, HydraContext(loader, Callbacks()))


def composed(*overrides: str) -> dict[str, Any]:
    """What Hydra makes of the shipped configuration with ``overrides``, resolved."""
    return composer(*_experiments(overrides)).plain(overrides, 0)


def asked(*overrides: str) -> Request:
    """The request of a cell with ``overrides``; raises ConfigError as the command does."""
    return request(overrides, composed(*overrides))


def read(words: Sequence[str]) -> list[Request]:
    """The requests of a whole sweep with these overrides; raises what its command would."""
    jobs = combinations([], {}, open_keys(words), OverridesParser.create())
    typed = [as_typed(job) for job in jobs]
    sweep = composer(*_experiments(words))
    composed = [place_on_devices(sweep.plain(job, i), job) for i, job in enumerate(typed)]
    known = keep_known_keys(composed)
    each = (request(job, own, sweep.written(job)) for job, own in zip(typed, known, strict=True))
    return take_own_batches(each)[0]


def _experiments(words: Sequence[str]) -> list[str]:
    return [word for word in words if word.startswith("experiment=")]
