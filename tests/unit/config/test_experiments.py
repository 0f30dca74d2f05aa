"""Every experiment composes, each of its cells is valid, and its grids are what they say."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from scalewise.config import resolve
from scalewise.sweep import combinations, rules, sweep_folder
from scalewise.sweep.plan import request

CONF = Path(__file__).parents[3] / "conf"
COMPARED_BY_TIME = (
    "doctor", "full_matrix", "gpt2_scaling", "matrix_gpt2_tiny", "matrix_medium",
    "precision_and_execution", "script", "strong_scaling", "threshold_study_cpu", "weak_scaling",
)  # fmt: skip
"""Of ours. Published studies keep their steps and epochs, and so do those that compare losses."""
EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))


@pytest.fixture(autouse=True)
def folder_resolver() -> None:
    OmegaConf.register_new_resolver("scalewise_folder", sweep_folder, replace=True)


def jobs(experiment: str) -> list[list[str]]:
    """The overrides of each job of ``-m experiment=NAME``."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        typed = [f"experiment={experiment}"]
        sweeper: Any = compose("config", overrides=typed, return_hydra_config=True).hydra.sweeper
    rule = rules(sweeper.exclude, sweeper.only, sweeper.allow)
    return combinations(sweeper.grids or [], {}, typed, rule, OverridesParser.create())


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_one_cell_of_each_kind_is_valid(experiment: str) -> None:
    seen = set()
    every = jobs(experiment)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        for overrides in every:
            # One of each combination of groups: values within a group do not change what fits.
            kind = tuple(o for o in overrides if (CONF / o.split("=")[0]).is_dir())
            if kind in seen:
                continue
            seen.add(kind)
            one = request(overrides, resolve(compose("config", overrides=overrides)))
            assert one.cell.is_counted == (experiment not in COMPARED_BY_TIME)
    assert seen


def test_the_published_study_has_its_batch_sizes() -> None:
    found = {tuple(o for o in job if not o.startswith("experiment")) for job in jobs(
        "tensorflow_study"
    )}  # fmt: skip
    expected = {
        (f"model={model}", f"strategy={strategy}", f"batch_size={batch}")
        for model, batches in (("medium", (8, 16, 32, 64, 128)), ("large", (4, 8, 16, 32, 64, 128)))
        for strategy, batch in itertools.product(("single", "ddp"), batches)
    }
    assert found == expected
