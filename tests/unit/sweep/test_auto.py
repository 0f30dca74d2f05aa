"""``strategy=auto``: what runs first, what is then trained, and that it is decided from records."""

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from fakes.executor import PlayedExecutor
from fakes.recorded import DDP, Spec, write_cell
from fakes.requests import asked
from scalewise.analysis import UndecidedError
from scalewise.records import (
    CellFolder,
    Ending,
    StrategyDecision,
    SweepFolder,
    SweepPlan,
    find_record,
    save_record,
)
from scalewise.sweep import Cell, Engine
from scalewise.sweep.auto import choose, first_stage, settle_alone, undecided_requests
from scalewise.sweep.launcher import plan_in
from scalewise.sweep.plan import Request, plan
from scalewise.sweep.resume import select
from scalewise.sweep.status_view import Display


@pytest.fixture(scope="module")
def auto() -> Request:
    return asked("strategy=auto", "strategy.devices=2", "repeats=2")


def finish(cell: Cell, folder: CellFolder, on_several: Spec = DDP) -> None:
    spec = Spec() if cell.planned.devices == 1 else on_several
    noise = {0: 1.0, 1: 1.01, 2: 0.99}[cell.planned.repeat]
    write_cell(folder, cell.planned, replace(spec, repeat=cell.planned.repeat, run_factor=noise))


def ran_in(folder: Path, *words: str) -> list[Cell]:
    """What ran in a sweep of both stages, whose cells end at once, trackers and devices apart."""
    one = asked("strategy=auto", "strategy.devices=2", "repeats=2", "tracking=none", *words)
    selection = select(plan_in(folder, [one]), SweepFolder(folder), one.cell.sweep.rerun)

    def play(cell: Cell, of: CellFolder) -> Ending:
        finish(cell, of)
        of.save_config(cell.request.plain)
        return Ending("done")

    executor = PlayedExecutor(play)
    engine = Engine(folder, executor, Display(Console(quiet=True)))
    engine.undecided_requests, engine.rerun_ids = undecided_requests([one]), selection.rerun_ids
    engine.run(selection.cells)
    return executor.started


def test_stage_one_is_short_runs_of_every_candidate(auto: Request) -> None:
    other = asked("strategy=single", "max_steps=70")
    first = list(first_stage([auto, other]))
    assert first[-1] is other
    assert undecided_requests([auto, other, auto]) == (auto,)
    probes = {one.cell.strategy.kind: one.cell for one in first[:-1]}
    assert set(probes) == {"single", "ddp"}
    for cell in probes.values():
        assert (cell.max_steps, cell.warmup_steps, cell.repeats) == (60, 20, 3)
        assert (cell.validation, cell.sweep.objective) == ("never", "global_samples_per_s")
    assert (probes["single"].strategy.devices, probes["ddp"].strategy.devices) == (1, 2)
    cells = plan(first[:-1], 0)
    assert (len({cell.planned.config_id for cell in cells}), len(cells)) == (2, 6)


@pytest.mark.parametrize(("ddp_ms", "trained"), [(0.6, "ddp"), (40.0, "single")])
def test_the_better_one_is_trained_as_if_it_had_been_asked_for(
    tmp_path: Path, auto: Request, ddp_ms: float, trained: str
) -> None:
    folder = SweepFolder(tmp_path)
    cells = plan(tuple(first_stage([auto])), 0)
    folder.save_plan(SweepPlan(0.0, (), 0, tuple(cell.planned for cell in cells)))
    slow = replace(DDP, phases_ms={**DDP.phases_ms, "exposed_comm": ddp_ms})
    for cell in cells:
        finish(cell, folder.cell(cell.planned.name), slow)
    chosen, evidence = choose(folder, auto)
    devices = () if trained == "single" else ("strategy.devices=2",)
    assert chosen.config_id == asked(f"strategy={trained}", *devices, "repeats=2").config_id
    assert [cell.planned.repeat for cell in plan([chosen], 0)] == [0, 1]
    assert (len(evidence.lines()), evidence.chosen) == (3, trained)
    save_record(tmp_path, evidence)
    assert find_record(tmp_path, StrategyDecision) == evidence


def test_one_device_alone_trains_at_once(auto: Request) -> None:
    left_open = asked("strategy=auto", "repeats=2")
    (settled,), said = settle_alone([left_open], lambda hardware: 1)
    assert (settled.config_id, len(said)) == (asked("strategy=single", "repeats=2").config_id, 1)
    for request, devices in ((left_open, 2), (left_open, None), (auto, 1)):
        assert settle_alone([request], lambda hardware, n=devices: n) == ([request], [])


def test_a_sweep_that_goes_on_decides_the_same_without_another_probe(tmp_path: Path) -> None:
    first = ran_in(tmp_path)
    assert len(first) == 8
    decided = [find_record(tmp_path / c.planned.name, StrategyDecision) for c in first]
    assert decided[:6] == [None] * 6 and None not in decided[6:]
    lost = first[-1].planned
    (tmp_path / lost.name / "result.json").unlink()
    resume = f"sweep.resume={tmp_path}"
    assert [cell.planned.name for cell in ran_in(tmp_path, resume)] == [lost.name]
    again = ran_in(tmp_path, resume, "sweep.rerun=all")
    assert sorted(c.planned.cell_id for c in again) == sorted(c.planned.cell_id for c in first)


def test_nothing_is_trained_where_nothing_was_measured(tmp_path: Path, auto: Request) -> None:
    folder = SweepFolder(tmp_path)
    cells = plan(tuple(first_stage([auto])), 0)
    folder.save_plan(SweepPlan(0.0, (), 0, tuple(cell.planned for cell in cells)))
    with pytest.raises(UndecidedError, match=r"^no strategy could be measured: single: "):
        choose(folder, auto)
