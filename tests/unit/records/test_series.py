"""Series on disk: round trips, and what was changed after it was written."""

import os
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fakes.step_files import BLOCK_BYTES, steady_rows, write_rows
from scalewise import records


def test_rows_that_were_changed_are_never_read(tmp_path: Path) -> None:
    """Each byte of a file of three blocks is changed by one bit."""
    path = tmp_path / "steps"
    rows = steady_rows(4)
    write_rows(path, *np.split(rows, (1, 3)))
    whole = path.read_bytes()

    def check(data: bytes) -> int | None:
        """How many rows are read, all of them true; None where the file is refused."""
        path.write_bytes(data)
        try:
            series = records.read_steps(path, 0)
        except records.RecordError:
            return None
        assert series.rows.copy().tobytes() == rows[: len(series)].tobytes()
        assert len(series) == 0 or series.epoch_offset_ns == 0
        return len(series)

    assert check(whole) == 4
    turned = []
    for place in range(len(whole)):
        data = bytearray(whole)
        data[place] ^= 1 << place % 8
        turned.append(check(bytes(data)))
    assert 4 not in turned
    assert turned.count(None) > 0.9 * len(turned)


@pytest.mark.parametrize(
    ("column", "value", "fault"),
    [
        ("samples", 0, None), ("samples", -1, "less than no sample"),
        ("host_step_ms", 0.0, None), ("host_step_ms", -1.0, "host_step_ms is negative"),
        ("device_step_ms", np.nan, None),
        ("device_step_ms", np.inf, "device_step_ms is negative or infinite"),
        *(("step", number, "do not follow one another") for number in (0, 2)),
    ],
)  # fmt: skip
def test_rows_that_no_training_writes_are_refused(
    tmp_path: Path, column: str, value: float, fault: str | None
) -> None:
    rows = steady_rows(2)
    rows[column][1] = value
    write_rows(tmp_path / "steps", rows)
    with pytest.raises(records.RecordError, match=fault) if fault else nullcontext():
        assert len(records.read_steps(tmp_path / "steps", 0)) == 2


def test_rows_of_several_blocks_come_back_and_steps_are_timed_from_one_on(tmp_path: Path) -> None:
    rows = steady_rows(2**15 + 3, on_device=False)
    rows["flags"][:2], rows["flags"][5:8] = records.WARMUP, 4  # of a version to come
    rows["samples"][7] = 99
    rows["host_step_ms"] = 10
    rows["host_step_ms"][:2] = 900
    with closing(records.StepWriter(tmp_path / "steps")) as writer:
        writer.append_rows(rows[7:10])
        assert writer.step_samples == (99, 99), "two of three are no seven of ten"
        writer.append_rows(rows[10:11])
        assert writer.step_samples == (99, rows["samples"][8])
    with closing(records.StepWriter(tmp_path / "steps")) as writer:
        writer.append_rows(rows[:3])
        assert writer.timed == (1, pytest.approx(0.01))
        writer.append_rows(rows[3:])
        assert writer.timed == (len(rows) - 2, pytest.approx(0.01 * (len(rows) - 2)))
        assert (writer.rows, *writer.step_samples) == (len(rows), 99, rows["samples"][8])
    series = records.read_steps(tmp_path / "steps", 3)
    assert series.rows.tobytes() == rows.tobytes()
    assert (series.rank, len(series), series.torn_bytes) == (3, len(rows), 0)
    assert (series.column("forward") == rows["host_forward_ms"]).all()
    assert np.isnan(series.column("step", "device")).all(), "missing stays missing"
    assert [len(one.timed()) for one in (series, replace(series, timed_from=5))] == [
        len(rows) - 2, len(rows) - 5
    ]  # fmt: skip
    assert series.select(np.isin(rows["step"], (3, 4, 8))).rows["step"].tolist() == [3, 4, 8]


def test_blocks_that_are_lost_swapped_or_repeated_are_seen(tmp_path: Path) -> None:
    path = tmp_path / "steps"
    rows = steady_rows(3)
    rows["step"] = 7  # their numbers would tell too
    write_rows(path, *np.split(rows, 3))
    head, newline, body = path.read_bytes().partition(b"\n")
    blocks = [body[i : i + BLOCK_BYTES] for i in range(0, len(body), BLOCK_BYTES)]
    for order in ((0, 2), (1, 0, 2), (0, 1, 1, 2)):
        path.write_bytes(head + newline + b"".join(blocks[i] for i in order))
        with pytest.raises(records.RecordError, match="checksum"):
            records.read_steps(path, 0)


def test_device_samples_come_back_with_what_happened_to_them(tmp_path: Path) -> None:
    path = tmp_path / "gpu" / "host.jsonl"
    writer = records.DeviceSeriesWriter(
        path, "host", "nvml", 1.0, (records.SampledDevice("GPU-0", 0, "a"),)
    )
    writer.append(1.0, {"GPU-0": records.DeviceSample("GPU-0", 50.0, throttle_reasons=())}, 0.1)
    writer.tell("device", records.SampledDevice("GPU-1", 1, "b"))
    writer.tell("problem", "GPU-0 is lost")
    writer.tell("unavailable", {"energy_j": "timed out"})
    writer.append(2.0, {"GPU-1": records.DeviceSample("GPU-1", 60.0)}, None)
    writer.close()
    with path.open("ab") as file:
        file.write(b'{"time": 3.0, "dev')
    series = records.read_device_series(path)
    assert series.values("GPU-0", "utilization_percent") == [50.0, None]
    assert series.values("GPU-0", "power_w") == [None, None]
    assert series.samples[0]["GPU-0"].throttle_reasons == ()
    assert [d.id for d in series.devices] == ["GPU-0", "GPU-1"]
    assert series.unavailable == {"energy_j": "timed out"}
    assert series.problems == ("GPU-0 is lost", "a torn end of 18 bytes was dropped")
    many = replace(series, times=range(8), samples=(series.samples[0],) * 8)
    kept = {most: [row[1] for row in records.timeline_rows(many, most)] for most in (None, 8, 3, 1)}
    assert kept == {None: [*range(8)], 8: [*range(8)], 3: [1, 4, 7], 1: [7]}


def test_shards_come_back_and_a_torn_archive_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "audit" / "rank1.npz"
    records.write_shard(path, records.ShardIndices(1, np.array([3, 1, 3]), 10, True))
    one = records.read_shard(path, 1)
    assert list(one.indices) == [3, 1, 3]
    assert (one.rank, one.dataset_size, one.epoch_complete, one.data_shard) == (1, 10, True, None)
    whole = path.read_bytes()
    for size in range(0, len(whole), 37):
        path.write_bytes(whole[:size])
        with pytest.raises(records.RecordError, match="cannot be read"):
            records.read_shard(path, 1)


def test_a_heartbeat_is_read_while_it_beats(tmp_path: Path) -> None:
    path = tmp_path / "heartbeat" / "rank0"
    assert records.read_heartbeat(path) is None
    writer = records.HeartbeatWriter(path)
    first = records.read_heartbeat(path)
    assert (first.step, first.total_steps, first.started_at) == (0, -1, 0.0)
    writer.begin(100)
    writer.beat(7, 112)
    beat = records.read_heartbeat(path)
    assert (beat.step, beat.total_steps, beat.samples) == (7, 100, 112)
    assert -1 < beat.started_at - first.time <= beat.time - first.time < 60
    writer.close()
    os.truncate(path, 17)
    assert records.read_heartbeat(path) is None
