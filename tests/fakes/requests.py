"""Requests as a command with these overrides makes them."""

from __future__ import annotations

import functools

from hydra._internal.callbacks import Callbacks
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import create_config_search_path
from hydra.core.singleton import Singleton
from hydra.types import HydraContext, RunMode
from omegaconf import OmegaConf

from scalewise.config import conf_dir
from scalewise.sweep import sweep_folder
from scalewise.sweep.compose import Composer
from scalewise.sweep.plan import Request, request


@functools.cache
def composer() -> Composer:
    """Composes as a sweep does: Hydra once for each choice of groups."""
    OmegaConf.register_new_resolver("scalewise_folder", sweep_folder, replace=True)
    state = Singleton.get_state()
    loader = ConfigLoaderImpl(create_config_search_path(str(conf_dir())))
    master = loader.load_configuration("config", [], RunMode.MULTIRUN)
    Singleton.set_state(state)
    return Composer(master, HydraContext(loader, Callbacks()))


def asked(*overrides: str) -> Request:
    """The request of a cell with ``overrides``; raises ConfigError as the command does."""
    return request(overrides, composer().plain(overrides, 0))
