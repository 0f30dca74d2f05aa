"""Every experiment composes, each of its cells is valid, and its grids are what they say."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from fakes.requests import asked, composed
from scalewise.config import ConfigError, build_cell, conf_dir, first_line, in_one_line
from scalewise.records import RecordError
from scalewise.sweep import combinations, sweep_folder
from scalewise.sweep.plan import make_cell

CONF = conf_dir()
COMPARED_BY_TIME = (
    "full_matrix", "gpt2_scaling", "matrix_gpt2_tiny", "matrix_medium",
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
    return combinations(sweeper.grids or [], {}, typed, OverridesParser.create())


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_one_cell_of_each_kind_is_valid(experiment: str) -> None:
    """One of each combination of groups: values within a group do not change what fits."""
    every = jobs(experiment)
    kinds = {tuple(o for o in job if (CONF / o.split("=")[0]).is_dir()): job for job in every}
    for job in kinds.values():
        assert asked(*job).cell.is_counted == (experiment not in COMPARED_BY_TIME)
    assert kinds


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


# Ids of configurations stay as they are: records of earlier versions are found by them.
IDS: dict[str, list[str]] = json.loads((Path(__file__).parent / "config_ids.json").read_text())
"""Overrides to the id of the configuration and the name of its first cell."""


@pytest.mark.parametrize("words", IDS)
def test_ids_and_names_of_cells_stay(words: str) -> None:
    cell = make_cell(asked(*words.split()), 0).planned
    assert [cell.config_id, cell.name] == IDS[words]


def test_every_shipped_option_has_its_id() -> None:
    shipped = {
        f"{path.parent.name}={path.stem}"
        for path in CONF.glob("*/*.yaml")
        if path.parent.name != "hydra"
    }
    assert shipped <= {word for words in IDS for word in words.split()}


_REQUIRED = ("name", "kind", "lightning", "matmul_tf32", "candidates")


@pytest.mark.parametrize(
    "strategy", ["auto", "ddp", "fsdp", "local_sgd", "pipeline", "single", "task_parallel"]
)
def test_a_key_that_is_left_out_has_the_value_that_its_option_says(strategy: str) -> None:
    plain = composed(f"strategy={strategy}")
    cell = build_cell(plain)
    for name in ("execution", "hardware", "measure", "monitor", "precision", "profile", "strategy",
                 "sweep"):  # fmt: skip
        for key in plain[name].keys() - set(_REQUIRED):
            less = {k: value for k, value in plain[name].items() if k != key}
            assert build_cell({**plain, name: less}) == cell, f"{name}.{key}"
    dataset = {key: value for key, value in plain["dataset"].items() if key != "loader"}
    assert build_cell({**plain, "dataset": dataset}) == cell


# Errors for users are one line each, whatever was typed.
@pytest.mark.parametrize("kind", [ConfigError, RecordError])
def test_what_ends_a_line_is_written_as_an_escape_and_text_as_it_is(kind: type[Exception]) -> None:
    typed = "a\nb\r\x1b[31m\x00\x85\u2028c"
    assert str(kind(typed)) == r"a\nb\r\x1b[31m\x00\x85\u2028c"
    assert len(str(kind(typed)).splitlines()) == 1
    text = "Größe — 幅\u3000\\n 'x'"
    assert str(kind(text)) == text


PAGE = "\n  CUDA error:\tmemory\nCUDA kernel errors might be reported late"
WORKER = "Caught\nOriginal Traceback (most recent call last):\n  File x\nOSError: no such file\n x"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (in_one_line(ValueError("  found 1\n\n   allowed:\t2 ")), "found 1 allowed: 2"),
        (in_one_line(ValueError("found 1\n 2"), at_most=7, with_class=True), "ValueError: found 1"),
        (first_line(RuntimeError(PAGE)), "RuntimeError: CUDA error:\tmemory ..."),
        (first_line(RuntimeError(PAGE), with_class=False), "CUDA error:\tmemory ..."),
        (first_line(TimeoutError(" \n"), with_class=False), "TimeoutError"),
        (first_line(ValueError("x" * 501), with_class=False), f"{'x' * 496} ..."),
        (first_line(OSError(WORKER)), "OSError: no such file ..."),
        (first_line(OSError(WORKER[:-3]), with_class=False), "no such file"),
        (in_one_line(TimeoutError(" \n"), with_class=True), "TimeoutError"),
    ],
)
def test_what_another_library_says_is_put_on_one_line(said: str, expected: str) -> None:
    assert said == expected
