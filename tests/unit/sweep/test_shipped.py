"""Which components are known to build, so that nothing has to be imported to see it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scalewise.config import ConfigError, build_cell, is_shipped
from scalewise.config.components import component_of
from scalewise.sweep.compose import compose_cell
from scalewise.sweep.plan import request


def test_an_option_as_it_is_shipped_counts_and_a_changed_one_does_not() -> None:
    cell = build_cell(compose_cell(["model=medium", "optimizer=adam", "dataset=tabular"]))
    for key in ("model", "optimizer", "dataset"):
        component = getattr(cell, key)
        assert is_shipped(key, component)
        assert not is_shipped(key, replace(component, target="mine.Net"))
        assert not is_shipped(key, replace(component, name="unheard_of"))
        assert not is_shipped(key, replace(component, arguments={}))


def test_a_component_with_another_name_than_its_file_is_looked_at() -> None:
    assert not is_shipped("model", component_of("model", {"_target_": "a.B", "name": "../model"}))


def test_a_wrong_argument_of_a_shipped_option_is_still_found_before_any_start() -> None:
    overrides = ["model=medium", "optimizer=adam", "optimizer.lr=-1", "hardware=cpu"]
    with pytest.raises(ConfigError, match=r"optimizer.*-1"):
        request(overrides, compose_cell(overrides))
