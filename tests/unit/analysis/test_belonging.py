"""Whole files that lie in the wrong cell or under the wrong rank are named, and not measured."""

from __future__ import annotations

import dataclasses
import re
import shutil
from pathlib import Path

import pytest
from recorded import DDP, Spec, write_sweep

from fakes.step_files import write_rows
from scalewise.analysis.cells import Cell
from scalewise.analysis.load import load_sweep
from scalewise.analysis.run import measure_run
from scalewise.analysis.summary import analyse
from scalewise.records import CellFolder, SweepFolder, read_steps

UNLIKE = dataclasses.replace(DDP, rank_losses={0: 0.125, 1: -0.125})


@pytest.fixture
def sweep(tmp_path: Path) -> tuple[CellFolder, CellFolder]:
    """A single-device cell and its twin on two, whose ranks have losses of their own."""
    path = write_sweep(tmp_path, [Spec(), UNLIKE])
    (_, single), (_, ddp) = SweepFolder(path).cells()
    return single, ddp


def loaded(folder: CellFolder) -> Cell:
    cells = load_sweep(folder.path.parent).cells
    return next(cell for cell in cells if cell.path == folder.path)


def test_records_where_they_were_written_have_no_fault(
    sweep: tuple[CellFolder, CellFolder],
) -> None:
    assert [loaded(folder).problems for folder in sweep] == [(), ()]


def test_steps_of_another_cell_are_named_and_left_out(
    sweep: tuple[CellFolder, CellFolder],
) -> None:
    single, ddp = sweep
    own = ddp.steps_path(1).read_bytes()
    shutil.copy(single.steps_path(0), ddp.steps_path(1))
    said = (
        "steps/rank1.bin: its steps fed 7,680 samples, but its rank counted 3,840: these are "
        "another's; they are left out"
    )
    assert loaded(ddp).step_faults == (said,)
    ddp.steps_path(1).write_bytes(own)
    shutil.copy(ddp.steps_path(0), single.steps_path(0))
    assert measure_run(loaded(single)).samples_per_s is None
    analysis = analyse(load_sweep(single.path.parent))
    assert (analysis.pairs, len(analysis.refused)) == ((), 1)


def test_one_ranks_steps_under_two_names_are_neither_ranks(
    sweep: tuple[CellFolder, CellFolder],
) -> None:
    _, ddp = sweep
    shutil.copy(ddp.steps_path(0), ddp.steps_path(1))
    cell = loaded(ddp)
    assert cell.step_faults == (
        "steps/rank1.bin: the same rows as rank0.bin: one is a copy of the other; both are left "
        "out",
    )
    assert measure_run(cell).arrival_cv_percent is None


@pytest.mark.parametrize(
    ("moved_s", "said"),
    [
        (-60.0, "up to 60.0 s before it began"),
        (60.0, "after its end: they are another cell's, or a clock was set"),
        (-1.0, None),
    ],
)
def test_steps_from_another_time_are_named_and_kept(
    sweep: tuple[CellFolder, CellFolder], moved_s: float, said: str | None
) -> None:
    single, _ = sweep
    path = single.steps_path(0)
    rows = read_steps(path, 0).rows.copy()
    rows["start_ns"] += int(moved_s * 1e9)
    write_rows(path, rows)
    cell = loaded(single)
    assert bool(cell.step_faults) == (said is not None)
    assert (said or "") in "".join(cell.step_faults)
    assert measure_run(cell).samples_per_s is not None


def resumed(folder: CellFolder, fed_before: int) -> None:
    """As if rank 0 had gone on from a checkpoint after ``fed_before`` samples."""
    result = folder.load_result()
    (rank,) = result.ranks
    went_on = dataclasses.replace(
        rank, resumed_at_step=5, samples_fed=rank.samples_fed + fed_before
    )
    folder.save_result(dataclasses.replace(result, ranks=(went_on,)))


def test_a_rank_that_went_on_fed_samples_and_kept_metrics_from_before(
    sweep: tuple[CellFolder, CellFolder],
) -> None:
    single, _ = sweep
    resumed(single, fed_before=640)
    metrics = single.metrics_path(0)
    metrics.write_text(re.sub(r'"time": \d+', '"time": 1750000000', metrics.read_text(), count=1))
    assert loaded(single).problems == ()
    resumed(single, fed_before=-1280)
    assert "fed 7,680 samples, but its rank counted 7,040" in loaded(single).step_faults[0]


def test_metrics_of_another_rank_are_named_and_left_out(
    sweep: tuple[CellFolder, CellFolder],
) -> None:
    _, ddp = sweep
    shutil.copy(ddp.metrics_path(0), ddp.metrics_path(1))
    cell = loaded(ddp)
    (said,) = cell.metric_faults
    assert "metrics/rank1.jsonl: its last train_loss is 0.381401, but its rank ended with" in said
    assert list(cell.metrics) == [0]
    assert measure_run(cell).missing["loss"] == said


def test_metrics_from_another_time_are_named(sweep: tuple[CellFolder, CellFolder]) -> None:
    single, _ = sweep
    metrics = single.metrics_path(0)
    metrics.write_text(re.sub(r'"time": \d+', '"time": 1750000000', metrics.read_text()))
    assert "s before it began" in loaded(single).metric_faults[0]


def test_metrics_of_a_later_rank_that_are_gone_are_named(
    sweep: tuple[CellFolder, CellFolder],
) -> None:
    _, ddp = sweep
    ddp.metrics_path(1).unlink()
    cell = loaded(ddp)
    assert cell.problems == ("metrics/rank1.jsonl: 0 of 12 rows are there",)
    assert measure_run(cell).final_loss is not None, "that of rank 0, and called so"


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        (None, "strategy is single, but the cell ran with ddp"),
        (3, "strategy.devices is 3, but the cell ran on 2"),
    ],
)
def test_another_cells_configuration_is_named_and_left_out(
    sweep: tuple[CellFolder, CellFolder], devices: int | None, said: str
) -> None:
    single, ddp = sweep
    if devices is None:
        shutil.copy(single.path / "config.yaml", ddp.path / "config.yaml")
    else:
        ddp.save_config(ddp.load_config() | {"strategy": {"name": "ddp", "devices": devices}})
    cell = loaded(ddp)
    assert cell.config is None
    assert cell.problems == (f"config.yaml: {said}: it is another cell's; it is left out",)
    analyse(load_sweep(ddp.path.parent))


def test_another_cells_provenance_is_named_and_left_out(
    sweep: tuple[CellFolder, CellFolder],
) -> None:
    single, ddp = sweep
    shutil.copy(single.path / "provenance.json", ddp.path / "provenance.json")
    cell = loaded(ddp)
    assert cell.provenance is None
    assert "it tells of 1 devices, but the cell had 2 there" in cell.problems[0]
    provenance = single.load_provenance()
    (gpu,) = provenance.devices
    other = dataclasses.replace(gpu, uuid="GPU-0009")
    single.save_provenance(dataclasses.replace(provenance, devices=(other,)))
    assert "it tells of GPU-0009, but the cell ran on GPU-0000" in loaded(single).problems[0]
    analyse(load_sweep(ddp.path.parent))


def test_the_provenance_of_the_first_of_two_hosts_tells_of_its_devices_alone(
    sweep: tuple[CellFolder, CellFolder],
) -> None:
    _, ddp = sweep
    result = ddp.load_result()
    ranks = tuple(dataclasses.replace(one, local_rank=0) for one in result.ranks)
    ddp.save_result(dataclasses.replace(result, ranks=ranks))
    provenance = ddp.load_provenance()
    ddp.save_provenance(dataclasses.replace(provenance, devices=provenance.devices[:1]))
    assert loaded(ddp).problems == ()
