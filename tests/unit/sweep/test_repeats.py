"""Stage two of a sweep: which cells are added, and that it comes to an end."""

import io
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.executor import PlayedExecutor
from fakes.recorded import DDP, Spec, write_cell
from fakes.requests import asked as request_of
from scalewise.records import Cause, CellFolder, Ending, PlannedCell, SweepFolder, SweepPlan
from scalewise.sweep import Cell, Engine, make_display
from scalewise.sweep.auto import adaptive_requests, describe_rounds, next_rounds
from scalewise.sweep.plan import Request, add_to_plan, make_cell, plan
from scalewise.sweep.resume import planned_repeats


def asked(*overrides: str) -> Request:
    return request_of("repeats=auto", *overrides)


@pytest.fixture(scope="module")
def cells() -> list[Cell]:
    return plan([asked("strategy=single"), asked("strategy=ddp", "strategy.devices=2")], 0)


FACTORS = (1.0, 1.4, 0.8, 1.2, 0.9)
"""Run to run, by repeat: three of them leave a pair open."""


def finish(
    own: CellFolder, planned: PlannedCell, factors: Sequence[float] = FACTORS, **changes: Any
) -> None:
    factor = factors[planned.repeat % len(factors)]
    spec = replace(DDP, run_factor=1 / factor) if planned.devices == 2 else Spec(run_factor=factor)
    config = {"repeats": "auto", "max_repeats": 8}
    write_cell(own, planned, replace(spec, repeat=planned.repeat, config=config, **changes))


def record(
    folder: SweepFolder, cells: list[Cell], factors: Sequence[float] = FACTORS,
    lost: Sequence[Cell] = (),
) -> None:  # fmt: skip
    """Finish ``cells``; some of them may have failed."""
    folder.save_plan(SweepPlan(0.0, (), 0, tuple(c.planned for c in cells)))
    for cell in cells:
        own = folder.cell(cell.planned.name)
        finish(own, cell.planned, factors, outcome="failed" if cell in lost else "done")


@pytest.fixture
def undecided(tmp_path: Path, cells: list[Cell]) -> tuple[SweepFolder, dict[str, Request]]:
    """A pair that three rounds leave open, and what was asked for."""
    folder = SweepFolder(tmp_path)
    record(folder, cells)
    return folder, dict(adaptive_requests(cells))


def test_an_undecided_pair_gets_a_whole_round_once_and_a_decided_one_none(
    undecided: tuple[SweepFolder, dict[str, Request]], cells: list[Cell]
) -> None:
    folder, requests = undecided
    more = next_rounds(folder, requests).cells
    assert [c.planned.repeat for c in more] == [3, 3]
    assert {c.planned.config_id for c in more} == set(requests)
    seeded = asked("sweep.order_seed=5")
    add_to_plan(folder, [replace(more[0], request=seeded), more[1]], "exclusive", 2)
    assert folder.load_plan().order_seed == 5
    add_to_plan(folder, [], "packed", None)
    kept = folder.load_plan()
    assert (kept.order_seed, kept.policy, kept.slots, len(kept.cells)) == (0, "packed", 2, 8)
    assert next_rounds(folder, requests).cells == [], "planned, whatever keeps it from running"
    record(folder, cells, (1.0, 1.01, 0.99))
    assert next_rounds(folder, requests).cells == []


def test_a_lost_half_is_made_up_for_by_a_whole_new_round(tmp_path: Path, cells: list[Cell]) -> None:
    """Round 1 of two devices failed: its single device has three runs, and runs again all the same.

    A run of round 3 beside an old single would be no pair.
    """
    folder, requests = SweepFolder(tmp_path), adaptive_requests(cells)
    lost = next(c for c in cells if c.planned.devices == 2 and c.planned.repeat == 1)
    record(folder, cells, lost=[lost])
    following = next_rounds(folder, requests)
    more, (found,) = following.cells, following.looked_at
    assert (found.runs, found.wanted) == (2, 3)
    assert sorted((c.planned.devices, c.planned.repeat) for c in more) == [(1, 3), (2, 3)]


def test_a_pair_without_time_for_its_next_rounds_stays_open_but_of_three_runs(
    undecided: tuple[SweepFolder, dict[str, Request]], cells: list[Cell]
) -> None:
    folder, requests = undecided
    following = next_rounds(folder, requests, lambda needed: len(needed) < 2)
    assert (following.cells, following.left_open) == ([], list(following.looked_at))
    assert not next_rounds(folder, requests, lambda needed: len(needed) < 3).left_open
    record(lost := SweepFolder(folder.path / "lost"), cells, lost=cells[:1])
    more = next_rounds(lost, requests, lambda needed: False).cells
    assert len(more) == 2, "a verdict needs them, whatever they take"
    record(lost, [*cells, *more], lost=[cells[0], more[0]])
    assert next_rounds(lost, requests, lambda needed: False).cells == [], "and once alone"


def test_a_pair_that_was_not_asked_for_as_a_whole_gets_no_half_rounds(
    undecided: tuple[SweepFolder, dict[str, Request]],
) -> None:
    folder, requests = undecided
    wide = {i: one for i, one in requests.items() if one.cell.strategy.name == "ddp"}
    assert next_rounds(folder, wide).cells == []


def test_rounds_that_a_configuration_sat_out_stay_out_when_it_is_resumed(
    tmp_path: Path, cells: list[Cell]
) -> None:
    folder = SweepFolder(tmp_path)
    single = next(c.request for c in cells if c.planned.devices == 1)
    ran = [make_cell(single, repeat) for repeat in (0, 1, 2, 5)]
    folder.save_plan(SweepPlan(0.0, (), 0, tuple(c.planned for c in ran)))
    assert [c.planned.repeat for c in plan([single], 0, planned_repeats(folder))] == [0, 1, 2, 5]


def recording(folder: Path, stop_after: int | None = None) -> tuple[Engine, list[Cell]]:
    """An engine whose cells end at once, with a time that follows their repeat; what it starts."""

    def play(cell: Cell, own: CellFolder) -> Ending:
        if len(executor.started) - 1 == stop_after:
            executor.started.pop()
            raise KeyboardInterrupt
        finish(own, cell.planned)
        return Ending("done")

    executor = PlayedExecutor(play)
    return Engine(folder, executor, make_display(io.StringIO())), executor.started


def test_a_sweep_stopped_between_its_looks_goes_on_where_it_was(tmp_path: Path) -> None:
    """Resumed, it runs what an uninterrupted sweep runs, and nothing of that twice."""
    requests = [
        asked("max_repeats=8", "tracking=none", "strategy=single"),
        asked("max_repeats=8", "tracking=none", "strategy=ddp", "strategy.devices=2"),
    ]
    engine, whole = recording(tmp_path / "whole")
    engine.run(plan(requests, 0))
    assert len(whole) > 6, "there is a second stage"

    folder = SweepFolder(tmp_path / "stopped")
    started: list[str] = []
    for stop_after in (7, 2, None):
        engine, ran = recording(folder.path, stop_after)
        with pytest.raises(KeyboardInterrupt) if stop_after else nullcontext():
            engine.run(plan(requests, 0, planned_repeats(folder)))
        started += [cell.planned.cell_id for cell in ran]
    assert len(started) == len(set(started)), "no run is made twice"
    assert set(started) == {cell.planned.cell_id for cell in whole}


@pytest.mark.parametrize(
    ("repeats", "cause", "tries"),
    [("auto", "exception", 1), ("auto", "config", 1), ("auto", "hang", 3), ("3", "config", 1),
     ("3", "exception", 3)],
)  # fmt: skip
def test_what_fails_by_itself_is_not_run_again_in_every_round(
    tmp_path: Path, repeats: str, cause: Cause, tries: int
) -> None:
    class OneByOne(PlayedExecutor):
        def order(self, waiting: Sequence[Any], running: Sequence[Any]) -> Sequence[Any]:
            return () if running else waiting[:1]

    executor = OneByOne(lambda cell, own: Ending("failed", cause, "no data here"))
    one = request_of(f"repeats={repeats}", "tracking=none", "strategy=single")
    report = Engine(tmp_path, executor, make_display(io.StringIO())).run(plan([one], 0))
    assert len(executor.started) == tries
    assert (report.count("failed"), report.count("skipped")) == (tries, 3 - tries)


def test_no_round_is_begun_that_would_end_beyond_the_budget(tmp_path: Path) -> None:
    """And with another one the same command goes on. Cells are said to take a second each."""

    def requests(minutes: float) -> list[Request]:
        words = ("max_repeats=8", "tracking=none", f"sweep.budget_min={minutes}")
        wide = ("strategy=ddp", "strategy.devices=2")
        return [asked(*words, "strategy=single"), asked(*words, *wide)]

    folder = SweepFolder(tmp_path)
    engine, ran = recording(folder.path)
    said: list[str] = []
    engine.display.note = said.append  # type: ignore[method-assign]
    engine.run(plan(requests(0.02), 0))
    assert len(ran) == 6
    assert "no more rounds within sweep.budget_min" in said[-1]
    engine, more = recording(folder.path)
    engine.run(plan(requests(60), 0, planned_repeats(folder)))
    assert {cell.planned.repeat for cell in more} == {3, 4, 5, 6, 7}


def test_a_preview_says_until_when_rounds_are_added() -> None:
    single, wide = (request_of(f"strategy={n}", "sweep.budget_min=5") for n in ("single", "ddp"))
    (line,) = describe_rounds(plan([single, wide], 0))
    assert line.startswith("until decided: 3 to 20 runs each, at most 5 min")
    assert describe_rounds(plan([single], 0)) == []
