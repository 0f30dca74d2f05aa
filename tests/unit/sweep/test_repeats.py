"""Stage two of a sweep: which cells are added, and that it comes to an end."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

sys.path.insert(0, str(Path(__file__).parents[1] / "analysis"))

from recorded import DDP, Spec, write_cell

from scalewise.config import ConfigError, resolve
from scalewise.paths import conf_dir
from scalewise.records import SweepFolder, SweepPlan
from scalewise.sweep.plan import Cell, Request, plan, request
from scalewise.sweep.repeats import adaptive_requests, next_rounds


def asked(*overrides: str) -> Request:
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        plain = resolve(compose(config_name="config", overrides=["repeats=auto", *overrides]))
    return request(overrides, plain)


@pytest.fixture(scope="module")
def cells() -> list[Cell]:
    return plan([asked("strategy=single"), asked("strategy=ddp", "strategy.devices=2")], 0)


def record(folder: SweepFolder, cells: list[Cell], factors: dict[int, float]) -> None:
    """Finish ``cells`` with the run-to-run factor of each repeat."""
    folder.save_plan(SweepPlan(0.0, (), 0, tuple(c.planned for c in cells)))
    for cell in cells:
        spec = Spec() if cell.planned.devices == 1 else DDP
        run = replace(
            spec,
            repeat=cell.planned.repeat,
            run_factor=factors[cell.planned.repeat] ** (-1 if spec is DDP else 1),
            config={"repeats": "auto"},
        )
        write_cell(folder.cell(cell.planned.name), cell.planned, run)


def test_auto_begins_with_the_first_look(cells: list[Cell]) -> None:
    assert len(cells) == 6
    assert {c.planned.repeat for c in cells} == {0, 1, 2}
    assert len(adaptive_requests(cells)) == 2


def test_an_undecided_pair_gets_interleaved_rounds_and_a_decided_one_none(
    tmp_path: Path, cells: list[Cell]
) -> None:
    folder, requests = SweepFolder(tmp_path), adaptive_requests(cells)
    tried = {c.planned.cell_id for c in cells}
    record(folder, cells, {0: 1.0, 1: 1.4, 2: 0.8})
    step = next_rounds(folder, requests, tried)
    assert [c.planned.repeat for c in step.cells] == [3, 3, 4, 4]
    for block in (step.cells[:2], step.cells[2:]):
        assert {c.planned.config_id for c in block} == set(requests)
    assert not {c.planned.cell_id for c in step.cells} & tried
    record(folder, cells, {0: 1.0, 1: 1.01, 2: 0.99})
    assert next_rounds(folder, requests, tried).cells == ()


def test_it_ends_when_everything_wanted_was_tried(tmp_path: Path, cells: list[Cell]) -> None:
    folder, requests = SweepFolder(tmp_path), adaptive_requests(cells)
    record(folder, cells, {0: 1.0, 1: 1.4, 2: 0.8})
    tried = {c.planned.cell_id for c in cells}
    more = next_rounds(folder, requests, tried).cells
    assert next_rounds(folder, requests, tried | {c.planned.cell_id for c in more}).cells == ()


def test_the_limits_are_checked_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match="max_repeats: found 2; allowed: 3 or more"):
        asked("max_repeats=2")
    with pytest.raises(ConfigError, match="precision_percent: found 0"):
        asked("precision_percent=0")
    with pytest.raises(ConfigError, match="repeats: found 'often'"):
        asked("repeats=often")
