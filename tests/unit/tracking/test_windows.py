import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest

from fakes.recorded import RecordedCell, edit_ranks, own_loss
from scalewise.records import (
    STEP_DTYPE,
    WARMUP,
    CellFolder,
    DataError,
    DeviceSample,
    DeviceSeriesWriter,
    MetricRow,
    PlannedCell,
    SampledDevice,
    current_attempt,
)
from scalewise.tracking.rows import CellRows, DeviceRows, RankMeans, StepWindows
from scalewise.tracking.tracker import Row, RunInfo, RunSummary, SweepName, run_info, run_summary
from scalewise.tracking.trackio import name_in_trackio


def steps(
    first: int, last: int, step_ms: float = 100.0, arrival_ms: float = 40.0, *, warmup: int = 0,
    device: bool = False,
) -> npt.NDArray[np.void]:  # fmt: skip
    rows = np.zeros(last - first + 1, STEP_DTYPE)
    for name in STEP_DTYPE.names or ():
        if name.endswith("_ms"):
            rows[name] = np.nan
    rows["step"] = np.arange(first, last + 1)
    rows["start_ns"] = (rows["step"] - 1) * int(step_ms * 1e6)
    rows["samples"] = 8
    rows["flags"] = np.where(rows["step"] <= warmup, WARMUP, 0)
    line = "device" if device else "host"
    rows[f"{line}_step_ms"] = step_ms
    rows[f"{line}_arrival_ms"] = arrival_ms
    rows[f"{line}_forward_ms"] = 7.0
    return rows


def windows_of(*ranks: npt.NDArray[np.void]) -> StepWindows:
    """Of ten steps each; of each rank these rows came."""
    windows = StepWindows(every_n_steps=10, world_size=len(ranks))
    for rank, rows in enumerate(ranks):
        windows.add(rank, rows)
    return windows


@pytest.mark.parametrize("device", [False, True])
def test_known_times_one_rank_and_no_phase_that_is_missing(device: bool) -> None:
    (row,) = windows_of(steps(1, 10, device=device)).cut(final=False)
    assert (row.step, row.start_ns) == (10, 9 * 100_000_000)
    known = {"step_time_ms": 100, "global_samples_per_s": 80, "phases/forward_ms": 7}
    assert row.values == pytest.approx(known)


def test_known_times_two_ranks_the_slowest_counts() -> None:
    slow = steps(1, 10, step_ms=125, arrival_ms=0.5)
    (row,) = windows_of(steps(1, 10, step_ms=100, arrival_ms=0.3), slow).cut(final=False)
    assert row.values == pytest.approx({
        "step_time_ms": 125, "global_samples_per_s": 128, "phases/forward_ms": 7,
        "balance/arrival_cv_percent": 25, "balance/rank_0_arrival_ms": 0.3,
        "balance/rank_1_arrival_ms": 0.5,
    })  # fmt: skip


def test_a_window_waits_for_every_rank_and_is_the_same_whenever_rows_arrive() -> None:
    at_once = list(windows_of(steps(1, 95), steps(1, 95)).cut(final=True))
    piecewise = StepWindows(every_n_steps=10, world_size=2)
    found = []
    for first in range(1, 95, 24):
        for rank in (0, 1):
            piecewise.add(rank, steps(first, min(first + 23, 95)))
            found += piecewise.cut(final=False)
            assert (piecewise.global_samples_per_s() is None) == (first + rank == 1)
    found += piecewise.cut(final=True)
    assert (found, [row.step for row in at_once]) == (at_once, [*range(10, 91, 10), 95])


def test_a_window_with_a_step_that_nobody_counted_has_no_rate() -> None:
    rows = steps(1, 20)
    rows["samples"][12] = 0
    cut = windows_of(rows).cut(final=True)
    assert ["global_samples_per_s" in row.values for row in cut] == [True, False]


def test_fast_steps_make_at_most_two_rows_a_second() -> None:
    rows = list(windows_of(steps(1, 20_000, step_ms=0.1)).cut(final=True))
    assert 3 <= len(rows) <= 5
    assert all(row.step % 10 == 0 for row in rows)


def test_warmup_is_left_out() -> None:
    windows = windows_of(steps(1, 10, warmup=10, step_ms=5000))
    assert list(windows.cut(final=True)) == []
    assert windows.global_samples_per_s() is None
    windows.add(0, steps(11, 30, warmup=10))
    assert list(windows.cut(final=True))[-1].values["step_time_ms"] == pytest.approx(100)
    assert windows.global_samples_per_s() == pytest.approx(80)


def test_a_rank_that_broke_off_leaves_no_throughput() -> None:
    (row,) = windows_of(steps(1, 10), steps(1, 4)).cut(final=True)
    assert "global_samples_per_s" not in row.values
    assert "balance/arrival_cv_percent" not in row.values
    assert row.values["step_time_ms"] == pytest.approx(100)


# What trackers are shown of metrics that each rank records of its own samples.
PLANNED = PlannedCell("id", "config", "cell", (), 0, 2)


def row(step: int, loss: float | None, fed: int | None = 8, **more: float) -> MetricRow:
    return MetricRow(0.0, step, 0, 16 * step, {"train_loss": loss, **more}, fed)


@pytest.mark.parametrize(
    ("first", "second", "means"),
    # Samples decide how much a rank counts; rows of one step are matched in their order.
    [([row(10, 2.0, 24, lr=0.1), row(20, 1.0, 24)], [row(10, 1.0, 8, lr=0.1), row(20, 1.0)],
      [{"train_loss": 1.75, "lr": 0.1}, {"train_loss": 1.0}]),
     ([row(10, 4.0), row(10, 3.0)], [row(10, 2.0), row(10, 1.0)],
      [{"train_loss": 3.0}, {"train_loss": 2.0}]),
     ([row(10, 2.0, only_here=1.0)], [row(10, None)], [{}]),  # not finite on one rank
     ([row(10, 2.0, None)], [row(10, 1.0, None)], [{}]),  # nobody counted the samples
     ([row(10, 2.0, None)], [row(10, 2.0, None)], [{"train_loss": 2.0}])],
)  # fmt: skip
def test_a_mean_is_of_what_is_known_of_both_ranks_by_their_samples(
    first: list[MetricRow], second: list[MetricRow], means: list[dict[str, float]]
) -> None:
    of = RankMeans(2)
    assert [of.add(0, one) for one in first] == [{}] * len(first), "the other rank is behind"
    assert [of.add(1, one) for one in second] == means


def shown(cell: RecordedCell) -> list[Row]:
    cell.close()
    rows = CellRows(cell.folder, cell.folder.load_config(), 1.0)
    return [one for one in rows.read() if "train_loss" in " ".join(one.values)]


def test_the_plain_name_is_the_mean_and_each_rank_has_its_own(tmp_path: Path) -> None:
    found = shown(RecordedCell(CellFolder(tmp_path), steps=20))
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
    progress = [{n: v for n, v in one.values.items() if "progress" in n} for one in found]
    assert [bool(one) for one in progress] == ["rank_0/train_loss" in one.values for one in found]
    assert {"progress/epoch": 0.0, "progress/samples": 320.0} in progress


def test_what_is_left_is_read_in_pieces_to_the_end_of_the_longest_series(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = RecordedCell(CellFolder(tmp_path))
    for _ in range(4):
        cell.train(20)  # a block of steps
    cell.succeed()
    monkeypatch.setattr("scalewise.records.files._CHUNK_BYTES", 24 * STEP_DTYPE.itemsize)
    read = [*CellRows(cell.folder, cell.folder.load_config(), 1.0).read(final=True)]
    assert len(read) == cell.expected_rows() - 1  # but for the summary
    for row in read:  # of a second each, in the cell's own time
        began_at = cell.started_at + (row.step or 0) / 10 - 1
        assert row.kind == "system" or began_at - 0.2 < row.time < began_at + 1.2
    (first, *_) = (row for row in read if row.kind == "system")
    assert (first.step, first.values["gpu/1/power_w"]) == (0, 153.0), "the only host has no label"


def test_one_rank_speaks_for_the_run(tmp_path: Path) -> None:
    cell = RecordedCell(CellFolder(tmp_path), ranks=1, steps=20)
    assert [one.values["train_loss"] for one in shown(cell)] == [own_loss(10, 0), own_loss(20, 0)]
    rows = CellRows(cell.folder, cell.folder.load_config(), 1.0).read(final=True)
    assert not any("_cv_" in name for one in rows for name in one.values), "there is one of each"
    for asked, used in ((1, 1), (0, 50), (None, 50)):
        own = CellRows(cell.folder, {"log_every_n_steps": asked}, 1.0)
        assert own.windows.every_n_steps == used


def test_models_that_never_meet_have_no_mean(tmp_path: Path) -> None:
    config = {"strategy": {"name": "task_parallel", "kind": "task_parallel"}}
    cell = RecordedCell(CellFolder(tmp_path), config=config, steps=10)
    names = {name for one in shown(cell) for name in one.values}
    assert {"rank_0/train_loss", "rank_1/train_loss"} <= names
    assert "train_loss" not in names


def test_the_tracker_is_told_what_a_module_trained_with(tmp_path: Path) -> None:
    own = {"model": {"_target_": "mine.Net"}, "optimizer": {"name": "adam"}}
    cell = RecordedCell(CellFolder(tmp_path), config=own, steps=20)
    cell.succeed()
    info, summary = told(cell)
    assert info.tags == ("Net", "tabular", "ddp", "fp32", "strong scaling")
    assert "optimizer" not in summary.config
    edit_ranks(tmp_path, lambda rank: rank.update(own_optimizer="SGD"), ".")
    assert told(cell)[1].config["optimizer"] == {"name": "its own (SGD)"}


def test_a_rehearsal_is_called_one_and_has_no_rate_of_all_its_ranks(tmp_path: Path) -> None:
    """Its steps are as they were; nobody trained on the ranks that were not there."""
    kind = {"name": "ddp2_rehearsed_pcie", "kind": "rehearsal", "ranks": 2}
    cell = RecordedCell(CellFolder(tmp_path), config={"strategy": kind}, ranks=1, steps=20)
    cell.succeed()
    info, _ = told(cell)
    assert info.name.startswith("rehearsed ")
    assert {"rehearsed", "ddp2_rehearsed_pcie"} <= set(info.tags)
    reader = CellRows(cell.folder, cell.folder.load_config(), 1.0)
    names = {name for one in reader.read(final=True) for name in one.values}
    assert "step_time_ms" in {name.rpartition("/")[2] for name in names}
    assert not [name for name in names if "samples_per_s" in name]
    assert reader.windows.global_samples_per_s() is None


def told(cell: RecordedCell) -> tuple[RunInfo, RunSummary]:
    """What a tracker is told of a run at its begin and at its end."""
    folder, attempt = cell.folder, current_attempt(cell.folder)
    assert attempt is not None
    info = run_info(folder, attempt, PLANNED, folder.path, SweepName("11-23 14:05", "net"))
    return info, run_summary(folder, attempt, None)


# Devices.
Samples = Sequence[tuple[float, list[DeviceSample]]]


def rows(
    path: Path, source: Literal["nvml", "process"], samples: Samples, *more: Any, label: str = ""
) -> list[tuple[float, dict[str, float]]]:
    """What is made of a series with devices ``d0`` (index 2) and ``d1`` (3), and of more lines."""
    devices = tuple(SampledDevice(f"d{i}", i + 2, "A10G", i) for i in range(2))
    with closing(DeviceSeriesWriter(path / "a", "host", source, 1.0, devices)) as writer:
        for when, readings in samples:
            writer.append(when, {s.id: s for s in readings}, 0.1)
        writer.tell("problem", "a GPU was lost")
    lines = [json.loads(line) for line in (path / "a").read_text().splitlines()]
    found = map(DeviceRows(1.0, label).row, [*lines, *more])
    return [row for row in found if isinstance(row, tuple)]


def test_gpus_are_named_by_index(tmp_path: Path) -> None:
    both = [
        DeviceSample("d0", utilization_percent=80, memory_used_mib=1000, throttle_reasons=()),
        DeviceSample("d1", utilization_percent=90, memory_used_mib=3000, throttle_reasons=("x",)),
    ]
    ((when, values),) = rows(tmp_path, "nvml", [(10.0, both)])
    assert when == 10.0
    assert values == {
        "gpu/2/utilization_percent": 80, "gpu/2/memory_used_mib": 1000, "gpu/2/throttled": 0.0,
        "gpu/3/utilization_percent": 90, "gpu/3/memory_used_mib": 3000, "gpu/3/throttled": 1.0,
        "gpu_2_memory": 1000, "gpu_3_memory": 3000, "gpu_total_memory": 4000,
        "gpu_avg_utilization": 85, "gpus/total_memory_used_mib": 4000,
        "gpus/mean_utilization_percent": 85, "gpus/memory_used_cv_percent": 50,
        "gpus/utilization_cv_percent": pytest.approx(100 * 5 / 85),
    }  # fmt: skip


@pytest.mark.parametrize("others", [[DeviceSample("d1")], []])
def test_an_unread_or_lost_gpu_leaves_no_total(tmp_path: Path, others: list[DeviceSample]) -> None:
    known = DeviceSample("d0", memory_used_mib=1000)
    ((_, values),) = rows(tmp_path, "nvml", [(10.0, [known, *others])])
    assert values == {"gpu/2/memory_used_mib": 1000, "gpu_2_memory": 1000}


def test_processes_are_labelled_as_such_and_a_late_one_is_known(tmp_path: Path) -> None:
    sample = [DeviceSample("d1", utilization_percent=180, memory_used_mib=500)]
    began = {"time": 1.0, "device": {"id": "late", "index": 7, "name": "rank 7"}}
    read = {"time": 2.0, "devices": [{"id": "late", "memory_used_mib": 3.0}]}
    assert rows(tmp_path, "process", [(1.0, sample)], began, read) == [
        (1.0, {"process/3/cpu_percent": 180, "process/3/rss_mib": 500}),
        (2.0, {"process/7/rss_mib": 3.0}),
    ]


def test_fast_samples_are_thinned(tmp_path: Path) -> None:
    fast = [(i / 10, [DeviceSample("d0", power_w=100 + i)]) for i in range(31)]
    times = [when for when, _ in rows(tmp_path, "nvml", fast)]
    assert times == pytest.approx([0.0, 0.9, 1.8, 2.7], abs=0.11)


def test_hosts_are_told_apart(tmp_path: Path) -> None:
    sample = [DeviceSample(f"d{i}", power_w=(1 + i) / 4, utilization_percent=0) for i in range(2)]
    ((_, values),) = rows(tmp_path, "nvml", [(1.0, sample)], label="beef-")
    assert values == {
        "gpu/beef-2/power_w": 0.25, "gpu/beef-3/power_w": 0.5, "gpus_beef/total_power_w": 0.75,
        "gpus_beef/power_cv_percent": pytest.approx(100 / 3), "gpu_avg_utilization_beef": 0,
        "gpu/beef-2/utilization_percent": 0, "gpu/beef-3/utilization_percent": 0,
        "gpus_beef/mean_utilization_percent": 0,
    }  # fmt: skip


def test_a_line_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="identity: unknown key"):
        rows(tmp_path, "nvml", [], {"time": 1.0, "devices": [{"identity": "d0"}]})
    with pytest.raises(DataError, match="level: found 'shout'"):
        rows(tmp_path, "nvml", [], {"time": 1.0, "alert": {"time": 1.0, "level": "shout"}})


def test_a_name_that_trackio_keeps_for_itself_is_another() -> None:
    assert [name_in_trackio(name) for name in ("step", "steps")] == ["value/step", "steps"]
