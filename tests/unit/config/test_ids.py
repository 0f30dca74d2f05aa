"""Ids of configurations stay as they are: records of earlier versions are found by them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir

from scalewise.config import conf_dir, resolve
from scalewise.sweep.plan import make_cell, request

CONF = conf_dir()
IDS: dict[str, list[str]] = json.loads((Path(__file__).parent / "config_ids.json").read_text())
"""Overrides to the id of the configuration and the name of its first cell."""


@pytest.fixture(scope="module")
def composed() -> dict[str, dict[str, Any]]:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return {words: resolve(compose("config", overrides=words.split())) for words in IDS}


@pytest.mark.parametrize("words", IDS)
def test_ids_and_names_of_cells_stay(words: str, composed: dict[str, dict[str, Any]]) -> None:
    cell = make_cell(request(words.split(), composed[words]), 0).planned
    assert [cell.config_id, cell.name] == IDS[words]


def test_every_shipped_option_has_its_id() -> None:
    shipped = {
        f"{path.parent.name}={path.stem}"
        for path in CONF.glob("*/*.yaml")
        if path.parent.name != "hydra"
    }
    assert shipped <= {word for words in IDS for word in words.split()}
