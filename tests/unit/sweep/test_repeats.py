"""Stage two of a sweep: which cells are added, and that it comes to an end."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from fakes.requests import asked as request_of

sys.path.insert(0, str(Path(__file__).parents[1] / "analysis"))

from fakes.recorded import DDP, Spec, write_cell
from scalewise.cluster import ray_engine
from scalewise.cluster.hosts import Demand, Order
from scalewise.cluster.ray_engine import HostLink, RayConfig, RayEngine
from scalewise.config import ConfigError
from scalewise.records import CellFolder, SweepFolder, SweepPlan
from scalewise.supervisor import Outcome
from scalewise.sweep import Cell, make_display
from scalewise.sweep.auto import adaptive_requests, next_rounds
from scalewise.sweep.plan import Request, plan
from scalewise.sweep.resume import planned_repeats


def asked(*overrides: str) -> Request:
    return request_of("repeats=auto", *overrides)


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
    more, _ = next_rounds(folder, requests, tried)
    assert [c.planned.repeat for c in more] == [3, 3, 4, 4]
    for block in (more[:2], more[2:]):
        assert {c.planned.config_id for c in block} == set(requests)
    assert not {c.planned.cell_id for c in more} & tried
    record(folder, cells, {0: 1.0, 1: 1.01, 2: 0.99})
    assert next_rounds(folder, requests, tried)[0] == []


def test_it_ends_when_everything_wanted_was_tried(tmp_path: Path, cells: list[Cell]) -> None:
    folder, requests = SweepFolder(tmp_path), adaptive_requests(cells)
    record(folder, cells, {0: 1.0, 1: 1.4, 2: 0.8})
    tried = {c.planned.cell_id for c in cells}
    more, _ = next_rounds(folder, requests, tried)
    assert next_rounds(folder, requests, tried | {c.planned.cell_id for c in more})[0] == []


def test_the_limits_are_checked_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match="max_repeats: found 2; allowed: 3 or more"):
        asked("max_repeats=2")
    with pytest.raises(ConfigError, match="precision_percent: found 0"):
        asked("precision_percent=0")
    with pytest.raises(ConfigError, match="repeats: found 'often'"):
        asked("repeats=often")


class RecordingEngine(RayEngine):
    """Every cell ends at once with a recorded run, whose time follows its repeat alone."""

    def __init__(self, folder: Path, stop_after: int | None = None) -> None:
        super().__init__(folder, RayConfig(), make_display(io.StringIO()))
        self.stop_after = stop_after
        self.started: list[str] = []

    def _ask_for(self, cell: Cell) -> None:
        width = cell.planned.devices or 1
        self._queue.append((cell, Demand(width, 1, 0, 1)))

    def _links(self, order: Order) -> Sequence[HostLink]:
        if len(self.started) == self.stop_after:
            raise KeyboardInterrupt
        planned, wanted = order.cell, order.wanted
        self.started.append(planned.cell_id)
        factor = FACTORS[planned.repeat % len(FACTORS)] ** (-1 if wanted.width > 1 else 1)
        run = replace(
            DDP if wanted.width > 1 else Spec(),
            repeat=planned.repeat,
            run_factor=factor,
            config={"repeats": "auto", "max_repeats": 8},
        )
        write_cell(CellFolder(Path(order.folder)), planned, run)
        return [Ended()]


class Ended(HostLink):
    """A host whose part is over."""

    host = "node1"

    def __init__(self) -> None: ...

    def answer(self) -> Outcome:
        return Outcome("done")

    def tell(self, line: str) -> None: ...

    def stop(self) -> None: ...

    def drop(self) -> None: ...


FACTORS = (1.0, 1.4, 0.8, 1.2, 0.9)


def test_a_sweep_stopped_between_its_looks_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resumed, it runs what an uninterrupted sweep runs, and nothing of that twice."""
    connected = SimpleNamespace(nodes_without=lambda path: [], close=lambda: None)
    monkeypatch.setattr(ray_engine, "RayCluster", lambda *_: connected)
    monkeypatch.setattr(ray_engine, "_LOOK_S", 0.001)
    requests = [
        asked("max_repeats=8", "tracking=none", "strategy=single"),
        asked("max_repeats=8", "tracking=none", "strategy=ddp", "strategy.devices=2"),
    ]
    whole = RecordingEngine(tmp_path / "whole")
    whole.run(plan(requests, 0))
    assert len(whole.started) > 6, "there is a second stage"

    folder = SweepFolder(tmp_path / "stopped")
    started: list[str] = []
    for stop_after in (7, 2, None):
        engine = RecordingEngine(folder.path, stop_after)
        again = plan(requests, 0, planned_repeats(folder))
        if stop_after is None:
            engine.run(again)
        else:
            with pytest.raises(KeyboardInterrupt):
                engine.run(again)
        started += engine.started
    assert len(started) == len(set(started)), "no run is made twice"
    assert set(started) == set(whole.started)
