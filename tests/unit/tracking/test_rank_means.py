"""What trackers are shown of metrics that each rank records of its own samples."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.recorded_cell import RecordedCell, own_loss
from scalewise.records import CellFolder, MetricRow, PlannedCell, current_attempt
from scalewise.tracking.rows import CellRows, RankMeans
from scalewise.tracking.tracker import Row, RunSummary, SweepName, run_info, run_summary

PLANNED = PlannedCell("id", "config", "cell", (), 0, 2)


def row(step: int, loss: float | None, fed: int | None = 8, **more: float) -> MetricRow:
    return MetricRow(0.0, step, 0, 16 * step, {"train_loss": loss, **more}, fed)


def test_samples_decide_how_much_a_rank_counts() -> None:
    means = RankMeans(2)
    assert means.add(0, row(10, 2.0, 24, lr=0.1)) == {}
    assert means.add(0, row(20, 1.0, 24)) == {}, "the other rank is behind"
    assert means.add(1, row(10, 1.0, 8, lr=0.1)) == {"train_loss": 1.75, "lr": 0.1}
    assert means.add(1, row(20, 1.0, 8)) == {"train_loss": 1.0}


def test_rows_of_one_step_are_matched_in_their_order() -> None:
    means = RankMeans(2)
    for loss in (4.0, 3.0):
        means.add(0, row(10, loss))
    assert means.add(1, row(10, 2.0)) == {"train_loss": 3.0}
    assert means.add(1, row(10, 1.0)) == {"train_loss": 2.0}


def test_what_is_not_known_of_all_ranks_has_no_mean() -> None:
    means = RankMeans(2)
    means.add(0, row(10, 2.0, only_here=1.0))
    assert means.add(1, row(10, None)) == {}, "not finite on one rank"
    means.add(0, row(20, 2.0, None))
    assert means.add(1, row(20, 1.0, None)) == {}, "nobody counted the samples"
    means.add(0, row(30, 2.0, None))
    assert means.add(1, row(30, 2.0, None)) == {"train_loss": 2.0}


def shown(cell: RecordedCell) -> list[Row]:
    cell.close()
    rows = CellRows(cell.folder, cell.folder.load_config(), 1.0)
    return [one for one in rows.read() if "train_loss" in " ".join(one.values)]


def test_the_plain_name_is_the_mean_and_each_rank_has_its_own(tmp_path: Path) -> None:
    cell = RecordedCell(CellFolder(tmp_path))
    cell.train(20)
    found = shown(cell)
    by_name = {
        name: {one.step: one.values[name] for one in found if name in one.values}
        for name in ("train_loss", "rank_0/train_loss", "rank_1/train_loss")
    }
    for step in (10, 20):
        own = [own_loss(step, rank) for rank in range(2)]
        assert by_name["rank_0/train_loss"][step] == own[0]
        assert by_name["rank_1/train_loss"][step] == own[1]
        assert by_name["train_loss"][step] == pytest.approx(sum(own) / 2)
    assert len({one.id for one in found}) == len(found) == 6


def test_one_rank_speaks_for_the_run(tmp_path: Path) -> None:
    cell = RecordedCell(CellFolder(tmp_path), ranks=1)
    cell.train(20)
    assert [one.values["train_loss"] for one in shown(cell)] == [own_loss(10, 0), own_loss(20, 0)]


def test_models_that_never_meet_have_no_mean(tmp_path: Path) -> None:
    config = {"strategy": {"name": "task_parallel", "kind": "task_parallel"}}
    cell = RecordedCell(CellFolder(tmp_path), config=config)
    cell.train(10)
    names = {name for one in shown(cell) for name in one.values}
    assert {"rank_0/train_loss", "rank_1/train_loss"} <= names
    assert "train_loss" not in names


def test_the_summary_is_of_all_ranks(tmp_path: Path) -> None:
    cell = RecordedCell(CellFolder(tmp_path))
    cell.train(20)
    cell.succeed()
    result = cell.folder.path / "result.json"
    text = result.read_text().replace('"train_loss": null', '"train_loss": 3.0', 1)
    result.write_text(text.replace('"train_loss": null', '"train_loss": 1.0', 1))
    assert summary(cell)["summary/train_loss"] == 2.0
    result.write_text(result.read_text().replace('"models": 1', '"models": 2'))
    found = summary(cell)
    assert "summary/train_loss" not in found
    assert (found["summary/rank_0/train_loss"], found["summary/rank_1/train_loss"]) == (3.0, 1.0)


def test_the_tracker_is_told_what_a_module_trained_with(tmp_path: Path) -> None:
    own = {"model": {"_target_": "mine.Net"}, "optimizer": {"name": "adam"}}
    cell = RecordedCell(CellFolder(tmp_path), config=own)
    cell.train(20)
    cell.succeed()
    attempt = current_attempt(cell.folder)
    assert attempt is not None
    config, called = cell.folder.load_config(), SweepName("11-23 14:05", "net")
    assert "adam" not in run_info(cell.folder, config, attempt, PLANNED, tmp_path, called).tags
    assert "optimizer" not in summed(cell).config
    result = cell.folder.path / "result.json"
    said = '"own_optimizer": null'
    assert said in result.read_text()
    result.write_text(result.read_text().replace(said, '"own_optimizer": "SGD"'))
    assert summed(cell).config["optimizer"] == {"name": "the module's own (SGD)"}


def summary(cell: RecordedCell) -> dict[str, float]:
    return dict(summed(cell).values)


def summed(cell: RecordedCell) -> RunSummary:
    attempt = current_attempt(cell.folder)
    assert attempt is not None
    return run_summary(cell.folder, attempt, None)
