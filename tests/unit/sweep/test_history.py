"""What is known of durations is worked out when a cell has ended, not whenever somebody asks."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from scalewise.records import DeviceInfo, PlannedCell
from scalewise.sweep.budget import Budget
from scalewise.sweep.demand import Demand
from scalewise.sweep.display import LineDisplay
from scalewise.sweep.durations import Durations, Measured
from scalewise.sweep.history import History
from scalewise.sweep.lease import Host
from scalewise.sweep.line import Line, Turn
from scalewise.sweep.order import Order
from scalewise.sweep.plan import Cell
from scalewise.sweep.remote import RemoteEngine
from scalewise.sweep.remote_cell import HostLink


class OnNoHost(RemoteEngine):
    """Cells wait for room that there never is."""

    def _ask_for(self, cell: Cell) -> None:
        self._queue.append((cell, Demand(1, 1, 0, 1)))

    def _links(self, orders: Sequence[Order], wanted: Demand) -> Sequence[HostLink] | None:
        return None


@pytest.fixture
def engine(tmp_path: Path) -> OnNoHost:
    return OnNoHost(tmp_path, "packed", LineDisplay(Console(quiet=True)), {})


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """On how many ended cells each estimate of durations rests."""
    counts: list[int] = []
    build = Durations.__init__

    def counted(self: Durations, measured: Sequence[Measured]) -> None:
        counts.append(len(measured))
        build(self, measured)

    monkeypatch.setattr(Durations, "__init__", counted)
    return counts


def cell(config_id: str, key: str = "0") -> Any:
    return SimpleNamespace(planned=PlannedCell(key, config_id, f"cell-{key}", (), 0, 1))


def test_a_budget_looks_at_all_that_runs_with_one_estimate_for_each_end(
    engine: OnNoHost, built: list[int]
) -> None:
    engine.budget = Budget(1.0)
    engine._standing.history.add(Measured("a", 50.0))
    beside = [(cell("a", str(i)), 1, 1.0) for i in range(64)]
    assert engine._affords(cell("a"), 1, beside)
    assert engine._affords(cell("a"), 1, beside), "65 cells of 50 s are less than an hour"
    assert built == [1]
    engine._standing.history.add(Measured("a", 70.0))
    assert not engine._affords(cell("a"), 1, beside), "65 cells of 60 s are more"
    assert built == [1, 2]


def test_without_a_budget_what_runs_is_not_looked_at(engine: OnNoHost, built: list[int]) -> None:
    beside = iter([(cell("a"), 1, 1.0)])
    assert engine._affords(cell("a"), 1, beside)
    assert len(list(beside)) == 1
    assert built == []


def test_hosts_get_the_longest_cells_first_by_one_estimate(
    engine: OnNoHost, built: list[int]
) -> None:
    for i in range(20):
        engine._standing.history.add(Measured(str(i), 1.0 + i))
        engine._ask_for(cell(str(i), str(i)))
    engine._sort_widest_first()
    assert [one.planned.config_id for one, _ in engine._queue] == [str(19 - i) for i in range(20)]
    assert built == [20]


def test_all_queues_of_a_host_share_one_estimate(built: list[int]) -> None:
    history = History()
    history.add(Measured("a", 10.0))
    line = Line(True, history)
    for i in range(3):
        gpu = DeviceInfo("cuda", "NVIDIA H200", f"GPU-{i}", i)
        line.waiting.append(Turn(cell("a", str(i)), 1, Host((gpu,), None, {})))
    assert len(line.next_up([], lambda turn: turn.host.slots)) == 3
    assert built == [1]


def test_what_like_cells_took_is_worked_out_once_for_all_that_nobody_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spreads: list[int] = []
    stdev = statistics.stdev

    def counted(values: Sequence[float]) -> float:
        spreads.append(len(values))
        return stdev(values)

    monkeypatch.setattr("scalewise.sweep.durations.statistics.stdev", counted)
    known = Durations([Measured("a", 4.0, width=1), Measured("b", 9.0, width=1)])
    found = [known.of(f"new-{i}", "train", width) for i in range(9) for width in (1, 2)]
    assert {round(one.seconds, 9) for one in found if one is not None} == {6.0}
    assert None not in found
    assert spreads == [2, 2], "once for cells of one device, once for any number"
