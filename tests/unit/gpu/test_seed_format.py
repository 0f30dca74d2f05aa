"""Seed 003's files: written, read back, whole after kill -9."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest

from scalewise.cli import main
from scalewise.gpu import export_folder, import_seed_file
from scalewise.gpu.export import (
    JsonArrayFile,
    export_cell,
    multi_entry,
    multi_gpu_path,
    read_seed_file,
    single_entry,
)
from scalewise.records import (
    CellFolder,
    DeviceSample,
    DeviceSeriesWriter,
    RecordError,
    SampledDevice,
    read_device_series,
)

_DEVICES = tuple(
    SampledDevice(f"GPU-{i}", i, "NVIDIA A10G", i, memory_total_mib=24_576) for i in range(4)
)
_MEMORY = (12_800, 12_750, 12_825, 12_780)
_SAMPLES = {
    f"GPU-{i}": DeviceSample(
        f"GPU-{i}",
        utilization_percent=80 + i,
        memory_used_mib=_MEMORY[i],
        power_w=150,
        temperature_c=70 + i,
    )
    for i in range(4)
}


def test_the_multi_gpu_format_is_the_seeds() -> None:
    entry = multi_entry(1.7e9, _DEVICES, _SAMPLES)
    assert entry["multi_gpu_data"][1]["gpu_index"] == 1
    assert entry["aggregate_stats"] == {
        "total_memory_used": 51_155,
        "total_memory_total": 98_304,
        "total_memory_percent": pytest.approx(52.04, abs=0.01),
        "average_utilization": 81.5,
        "total_power": 600,
        "max_temperature": 73,
        "gpu_count": 4,
    }


def test_what_was_not_read_is_null_and_makes_no_total() -> None:
    samples = {**_SAMPLES, "GPU-2": DeviceSample("GPU-2", utilization_percent=20)}
    entry = multi_entry(1.7e9, _DEVICES, samples)
    assert entry["multi_gpu_data"][2]["power"] is None
    aggregate = entry["aggregate_stats"]
    assert aggregate["total_power"] is None and aggregate["total_memory_used"] is None
    assert aggregate["max_temperature"] == 73


@pytest.mark.parametrize("kind", ["single", "multi"])
def test_both_formats_are_read_back(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "gpu_stats.json"
    log = JsonArrayFile(path)
    for n in range(3):
        when = 1.7e9 + 2 * n
        one = single_entry(when, _DEVICES[0], _SAMPLES["GPU-0"])
        log.append(one if kind == "single" else multi_entry(when, _DEVICES, _SAMPLES))
    log.close()
    series = read_seed_file(path)
    assert series.times == (1.7e9, 1.7e9 + 2, 1.7e9 + 4)
    assert series.interval_s == 2
    assert len(series.devices) == (1 if kind == "single" else 4)
    assert series.values("GPU-0", "memory_used_mib") == [12_800] * 3
    assert series.devices[0].memory_total_mib == 24_576
    assert [p.name for p in tmp_path.iterdir()] == ["gpu_stats.json"], "nothing else is left"


def test_an_old_file_as_the_seed_prints_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    entry = {
        "timestamp": "2025-01-15T10:30:00",
        "gpu_index": 0,
        "gpu_name": "NVIDIA A10G",
        "utilization": 85,
        "memory_used": 12800,
        "memory_total": 24576,
        "power": 150,
    }
    path.write_text(json.dumps(entry))
    series = read_seed_file(path)
    assert [d.id for d in series.devices] == ["gpu0"]
    assert series.values("gpu0", "power_w") == [150]
    assert series.unavailable == {"temperature_c": "not in the imported file"}
    path.write_text(json.dumps(entry) + "\n" + json.dumps(entry) + "\n")
    assert len(read_seed_file(path).times) == 2, "one object a line"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "it holds no entry"),
        ("not json", "not JSON"),
        ('[{"timestamp": "2025-01-15T10:30:00"}]', "entry 1: no 'gpu_index'"),
        ('[{"gpu_index": 0}]', "entry 1: no 'timestamp'"),
        ('[{"timestamp": "yesterday", "gpu_index": 0}]', "entry 1: Invalid isoformat"),
        ("[3]", "entry 1: "),
        ('[{"timestamp": "2025-01-15T10:30:00", "gpu_index": 1e999}]', "allowed: finite numbers"),
        ('[{"timestamp": "2025-01-15T10:30:00", "gpu_index": 0, "power": NaN}]', "found NaN"),
        ("[" * 100_000, "not JSON: its brackets are nested too deeply"),
    ],
)
def test_a_file_of_another_kind_is_refused_by_entry(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(RecordError, match=r"bad\.json") as error:
        read_seed_file(path)
    assert message in str(error.value)


def test_a_file_of_bytes_that_are_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(b"\x80\x81")
    with pytest.raises(RecordError, match=r"bad\.json: cannot be read: .* decode byte 0x80"):
        read_seed_file(path)


@pytest.mark.timeout(60)
def test_neither_a_pipe_nor_a_device_is_waited_for(tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe.json", tmp_path / "link.json"
    os.mkfifo(pipe)
    link.symlink_to("/dev/zero")
    for path in (pipe, link):
        with pytest.raises(RecordError, match=f"{path.name}.* no regular file"):
            read_seed_file(path)
        with pytest.raises(OSError, match=f"no regular file.*{path.name}"):
            JsonArrayFile(path)


def test_a_log_that_is_there_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    for entry in ({"a": 1}, {"b": 2}, {"c": 3}):
        log = JsonArrayFile(path)
        log.append(entry)
        log.close()
    assert json.loads(path.read_text()) == [{"a": 1}, {"b": 2}, {"c": 3}]
    path.write_text('{"an": "object"}')
    with pytest.raises(ValueError, match="not a JSON array; name another file"):
        JsonArrayFile(path)
    assert path.read_text() == '{"an": "object"}'


_WRITER = """
import sys, time
from pathlib import Path
from scalewise.gpu.export import JsonArrayFile
log, pause_s, n = JsonArrayFile(Path(sys.argv[1])), float(sys.argv[2]), 0
print("started", flush=True)
while True:
    log.append({"n": n, "text": "x" * 9000})
    n += 1
    time.sleep(pause_s)
"""


@contextmanager
def _writer(path: Path, pause_s: float) -> Iterator[None]:
    """A process that appends to ``path`` until it is killed on leaving the block."""
    command = [sys.executable, "-c", _WRITER, str(path), str(pause_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        try:
            yield
        finally:
            os.kill(writer.pid, signal.SIGKILL)


def test_the_log_is_whole_after_kill_9_in_the_middle_of_writing(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    seen = 0
    for attempt in range(5):
        with _writer(path, pause_s=0):
            time.sleep(0.02 + 0.007 * attempt)
        entries = json.loads(path.read_bytes())
        assert len(entries) > seen, "what earlier writers left is kept"
        seen = len(entries)


def test_a_reader_sees_a_whole_log_while_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    with _writer(path, pause_s=0.02):
        lengths = []
        for _ in range(40):
            lengths.append(len(json.loads(path.read_bytes())))
            time.sleep(0.01)
    assert lengths == sorted(lengths) and lengths[-1] > 5


def test_a_full_disk_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    code = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from scalewise.gpu.export import JsonArrayFile\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "log = JsonArrayFile(Path(sys.argv[1]))\n"
        "log.append({'n': 1})\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (200, resource.RLIM_INFINITY))\n"
        "try: log.append('x' * 500)\n"
        "except OSError: print('refused')\n"
        "log.append({'n': 2})\n"
    )
    path = tmp_path / "log.json"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "refused\n"
    assert json.loads(path.read_bytes()) == [{"n": 1}, {"n": 2}]


def test_a_cell_is_exported_to_all_three_files(tmp_path: Path) -> None:
    folder = CellFolder(tmp_path / "0_ddp")
    writer = DeviceSeriesWriter(folder.device_series_path("abc"), "abc", "nvml", 1.0, _DEVICES, {})
    without_power = {**_SAMPLES, "GPU-3": DeviceSample("GPU-3", throttle_reasons=("a", "b"))}
    writer.append(1.7e9, _SAMPLES, 0.2)
    writer.append(1.7e9 + 1, without_power, 0.2)
    writer.close()
    written = export_cell(folder, tmp_path / "out")
    assert [p.name for p in written] == [
        "gpu_stats_0_ddp.json",
        "gpu_stats_0_ddp_multi_gpu.json",
        "gpu_timeline.csv",
    ]
    assert read_seed_file(written[0]).values("GPU-0", "power_w") == [150, 150]
    assert read_seed_file(written[1]).values("GPU-3", "power_w") == [150, None]
    with written[2].open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8
    assert rows[1]["memory_used_mib"] == "12750.0" and rows[1]["gpu_index"] == "1"
    assert rows[7]["power_w"] == "" and rows[7]["throttle_reasons"] == "a; b"


def _sweep(path: Path, sources: dict[str, str]) -> Path:
    for name, source in sources.items():
        folder = CellFolder(path / name)
        folder.save_config({"model": {"name": "medium"}})
        series = folder.device_series_path("abc")
        assert source in ("nvml", "process")
        kind: Literal["nvml", "process"] = "nvml" if source == "nvml" else "process"
        writer = DeviceSeriesWriter(series, "abc", kind, 1.0, _DEVICES, {})
        writer.append(1.7e9, _SAMPLES, 0.2)
        writer.close()
    return path


def test_every_cell_of_a_sweep_is_exported_but_for_those_without_gpus(tmp_path: Path) -> None:
    sweep = _sweep(tmp_path / "sweep", {"a": "nvml", "b": "process", "c": "nvml"})
    written = export_folder(sweep, None).written
    assert [p.relative_to(sweep).as_posix() for p in written if p.suffix == ".csv"] == [
        "a/gpu_timeline.csv",
        "c/gpu_timeline.csv",
    ]
    elsewhere = export_folder(sweep, tmp_path / "out").written
    assert (tmp_path / "out" / "c" / "gpu_stats_c_multi_gpu.json") in elsewhere
    assert len(export_folder(sweep / "a", None).written) == 3


def test_a_series_that_cannot_be_read_leaves_out_its_cell_and_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = _sweep(tmp_path / "sweep", {"a": "nvml", "b": "nvml", "c": "nvml"})
    (damaged,) = CellFolder(sweep / "b").device_series_paths()
    damaged.write_text('{"schema_version": 1, "devices": 5}\n')
    assert main(["export", str(sweep)]) == 1
    said = capsys.readouterr()
    written = {Path(line).parent.name for line in said.out.splitlines()}
    assert written == {"a", "c"}
    (line,) = said.err.splitlines()
    assert line.startswith(f"scalewise export: left out: {damaged}: not a device series")


def test_nothing_to_export_is_said(tmp_path: Path) -> None:
    sweep = _sweep(tmp_path / "sweep", {"b": "process"})
    with pytest.raises(RecordError, match="no GPU was sampled there"):
        export_folder(sweep, None)
    with pytest.raises(RecordError, match="found no cell and no sweep"):
        export_folder(tmp_path, None)


def test_what_cannot_be_written_or_read_is_one_line_with_what_is_allowed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "taken"
    file.write_text(json.dumps([multi_entry(1.7e9, _DEVICES, _SAMPLES)]))
    no_folder = f"found {file}, which is no folder; allowed: a folder, there or new"
    sweep = _sweep(tmp_path / "sweep", {"a": "nvml"})

    assert main(["export", str(sweep / "a"), "--out", str(file)]) == 2
    assert capsys.readouterr().err == f"scalewise export: --out: {no_folder}\n"
    assert main(["export", str(sweep / "a"), "--out", str(file / "below")]) == 2
    assert capsys.readouterr().err == (
        f"scalewise export: --out: found {file / 'below'}, which cannot be written into: "
        "Not a directory; give another folder\n"
    )
    assert main(["import", str(file), str(file)]) == 2
    assert capsys.readouterr().err == f"scalewise import: cell: {no_folder}\n"
    assert main(["import", str(tmp_path / "none"), str(sweep / "a")]) == 2
    assert capsys.readouterr().err == (
        f"scalewise import: {tmp_path / 'none'}: cannot be read: No such file or directory; "
        "allowed: a file in either gpu_stats format\n"
    )


def test_an_imported_file_becomes_a_series_of_a_cell(tmp_path: Path) -> None:
    path = tmp_path / "gpu_stats_multi_gpu.json"
    path.write_text(json.dumps([multi_entry(1.7e9, _DEVICES, _SAMPLES)]))
    folder = CellFolder(tmp_path / "cell")
    import_seed_file(path, folder)
    (stored,) = folder.device_series_paths()
    assert read_device_series(stored) == read_seed_file(path)


def test_the_second_files_name() -> None:
    assert multi_gpu_path(Path("a/gpu_monitoring.json")) == Path("a/gpu_monitoring_multi_gpu.json")
