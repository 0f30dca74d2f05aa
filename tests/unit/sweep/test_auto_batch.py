"""``batch_size=auto``: what is searched, what is then trained, and that it is searched once."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from fakes.executor import PlayedExecutor
from fakes.requests import asked as request_of
from fakes.sections import lines_of

sys.path.insert(0, str(Path(__file__).parents[1] / "analysis"))

from fakes.recorded import Spec, write_cell
from scalewise.analysis import analyse, configurations, load_sweep
from scalewise.config import ConfigError
from scalewise.records import (
    BatchSearchRecord,
    BatchTrial,
    CellFolder,
    SweepFolder,
    find_record,
    save_record,
)
from scalewise.supervisor import Outcome
from scalewise.sweep import Cell, Engine, make_attempt
from scalewise.sweep.auto import describe_later, is_search, search_for, undecided_requests
from scalewise.sweep.display import Display
from scalewise.sweep.launcher import plan_in
from scalewise.sweep.plan import Request
from scalewise.sweep.resume import select


def asked(*overrides: str) -> Request:
    return request_of(*overrides, "tracking=none")


def found(per_device: int = 48, world: int = 1) -> BatchSearchRecord:
    trials = (BatchTrial(50, "fits", (), 900.0, 12.5), BatchTrial(64, "oom", (0,), None, None))
    return BatchSearchRecord(
        per_device, per_device * world, 50, "memory", 0.05, world, "NVIDIA H200", trials, {}, 1024.0
    )


class Pretended(Engine):
    """Cells end at once: a search finds 48 samples a device, or nothing."""

    def __init__(self, folder: Path, fails: bool = False) -> None:
        self.said: list[str] = []
        self.fails = fails
        executor = PlayedExecutor(self.play)
        self.ran = executor.started
        super().__init__(folder, executor, Display(Console(quiet=True)))
        self._stages._note = self.said.append

    def play(self, cell: Cell, folder: CellFolder) -> Outcome:
        if is_search(cell) and self.fails:
            failed = make_attempt(folder, "failed", "config", "no memory at all")
            folder.save_attempt(failed)
            return Outcome("failed", "no memory at all")
        world = cell.planned.devices or 1
        if is_search(cell):
            save_record(folder.path, found(world=world))
        asked_for = cell.request.cell
        spec = Spec(
            devices=world,
            repeat=cell.planned.repeat,
            strategy=asked_for.strategy.name,
            scaling=asked_for.scaling,
            batch_size=world if asked_for.batch_size == "auto" else asked_for.batch_size,
        )
        write_cell(folder, cell.planned, spec)
        folder.save_config(cell.request.plain)
        return Outcome("done")


def sweep(folder: Path, requests: Sequence[Request], fails: bool = False) -> Pretended:
    """As the launcher runs it, trackers and devices apart."""
    open_ones = undecided_requests(requests)
    cells = plan_in(folder, requests)
    selection = select(cells, SweepFolder(folder), cells[0].request.cell.sweep.rerun)
    engine = Pretended(folder, fails)
    engine.undecided_requests, engine.rerun_ids = open_ones, selection.rerun_ids
    engine.run(selection.cells)
    return engine


def test_what_takes_no_memory_shares_a_search_and_what_does_has_its_own() -> None:
    plain = search_for(asked("batch_size=auto"))
    for alike in ("seed=7", "max_steps=900", "scaling=weak", "repeats=5", "profile.window=true"):
        assert search_for(asked("batch_size=auto", alike)).config_id == plain.config_id, alike
    for other in ("model=large", "optimizer=sgd", "precision=bf16-mixed", "batch_search.max=64",
                  "accumulate_grad_batches=2"):  # fmt: skip
        assert search_for(asked("batch_size=auto", other)).config_id != plain.config_id, other


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("strategy=fsdp",), "batch_size: found auto with strategy=fsdp; allowed: a number, or"),
        (("strategy=auto",), "batch_size: found auto with strategy=auto; allowed: a number"),
        (("batch_search.margin=0.6",), "batch_search.margin: found 0.6; allowed: "),
    ],
)
def test_what_cannot_be_searched_is_refused_at_once(
    overrides: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        asked("batch_size=auto", *overrides)
    with pytest.raises(ConfigError, match="batch_size: found 128 with workload=find_batch"):
        asked("workload=find_batch")


@pytest.mark.parametrize(("scaling", "size"), [("strong", 96), ("weak", 48)])
def test_it_is_searched_once_and_trained_as_if_the_size_had_been_typed(
    tmp_path: Path, scaling: str, size: int
) -> None:
    two = ("strategy=ddp", "strategy.devices=2", f"scaling={scaling}", "repeats=2")
    requests = [asked(*two, "batch_size=auto", f"seed={seed}") for seed in (1, 2)]
    done = sweep(tmp_path, requests)
    assert [is_search(cell) for cell in done.ran] == [True] + [False] * 4
    assert [cell.planned.repeat for cell in done.ran[1:]] == [0, 0, 1, 1], "interleaved"
    for one, seed in zip(requests, (1, 2), strict=True):
        typed = asked(*two, f"batch_size={size}", f"seed={seed}")
        assert done.report.chosen[one.config_id] == typed.config_id
        cells = done.report.cells_of(one.config_id)
        assert [cell.planned.repeat for cell in cells] == [0, 1]
        for cell in cells:
            assert find_record(
                done.folder.cell(cell.planned.name).path, BatchSearchRecord
            ) == found(world=2)
    assert len(done.said) == 2, "once for both seeds"
    assert f"batch_size={size} with scaling={scaling} was found by the search" in done.said[0]
    assert "50 took 900 of 1,024 MiB a device" in done.said[0]


def test_a_sweep_that_goes_on_does_not_search_again(tmp_path: Path) -> None:
    first = sweep(tmp_path, [asked("batch_size=auto")])
    (search, trained) = first.ran
    (tmp_path / trained.planned.name / "result.json").unlink()
    resumed = asked("batch_size=auto", f"sweep.resume={tmp_path}")
    assert describe_later([resumed], SweepFolder(tmp_path)) == []
    second = sweep(tmp_path, [resumed])
    assert [cell.planned.cell_id for cell in second.ran] == [trained.planned.cell_id]
    more = sweep(tmp_path, [asked("batch_size=auto", f"sweep.resume={tmp_path}", "sweep.extend=1")])
    assert [cell.planned.repeat for cell in more.ran] == [1]
    assert find_record(tmp_path / more.ran[0].planned.name, BatchSearchRecord) == found()
    again = sweep(
        tmp_path, [asked("batch_size=auto", f"sweep.resume={tmp_path}", "sweep.rerun=all")]
    )
    assert [cell.planned.cell_id for cell in again.ran] == [
        cell.planned.cell_id for cell in (search, trained, more.ran[0])
    ]
    assert find_record(tmp_path / trained.planned.name, BatchSearchRecord) == found()


def test_the_devices_are_examined_once_and_before_anything_is_timed(tmp_path: Path) -> None:
    first = sweep(tmp_path, [asked("batch_size=auto", "sweep.doctor=true")])
    assert [cell.request.cell.workload for cell in first.ran] == ["find_batch", "doctor", "train"]
    resumed = [asked("batch_size=auto", "sweep.doctor=true", f"sweep.resume={tmp_path}")]
    assert sweep(tmp_path, resumed).ran == []


def test_nothing_is_trained_where_nothing_was_found(tmp_path: Path) -> None:
    one = asked("batch_size=auto")
    done = sweep(tmp_path, [one], fails=True)
    assert len(done.ran) == 1 and done.report.count("failed") == 1
    assert done.report.cells_of(one.config_id) == []
    assert done.said == [
        "batch    not found for medium tabular single x1 batch_size=auto: no memory at all"
    ]


def test_a_search_is_no_measurement_and_the_report_says_what_it_found(tmp_path: Path) -> None:
    sweep(tmp_path, [asked("batch_size=auto")])
    analysis = analyse(load_sweep(tmp_path))
    labels = [config.label for config in configurations(analysis.sweep)]
    assert sorted(labels) == ["find batch medium single x1", "medium single x1"]
    assert [config.label for config in analysis.measured] == ["medium single x1"]
    (line,) = lines_of(analysis, "batch_sizes")
    found = "batch_size=48 with scaling=strong was found by the search"
    assert line.startswith(f"medium single x1: {found}")


@pytest.mark.parametrize(
    ("scaling", "refused"), [("strong", ["batch: 48 against 96"]), ("weak", [])]
)
def test_what_was_trained_with_other_batches_is_not_compared(
    tmp_path: Path, scaling: str, refused: list[str]
) -> None:
    """48 samples on one device, and on each of two."""
    auto = ("batch_size=auto", f"scaling={scaling}")
    sweep(tmp_path, [asked(*auto), asked(*auto, "strategy=ddp", "strategy.devices=2")])
    analysis = analyse(load_sweep(tmp_path))
    why = [str(difference) for one in analysis.refused for difference in one.differing]
    assert why == refused
    assert len(analysis.pairs) == (not refused)
