"""The earlier monitor's files: written, read back, whole after kill -9."""

from __future__ import annotations

import csv
import itertools
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
    multi_entry,
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


def test_the_multi_gpu_format_is_the_seeds_and_makes_no_total_of_what_was_not_read() -> None:
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
    assert read_device_series(import_seed_file(path, CellFolder(tmp_path / "cell"))) == series


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
        ('[{"timestamp": "yesterday", "gpu_index": 0}]', "entry 1: Invalid isoformat"),
        ('[{"timestamp": "2025-01-15T10:30:00", "gpu_index": 1e999}]', "allowed: finite numbers"),
        ('[{"timestamp": "2025-01-15T10:30:00", "gpu_index": 0, "power": NaN}]', "found NaN"),
        ("[" * 100_000, "not JSON: its brackets are nested too deeply"),
        ("\udc80\udc81", "cannot be read: "),
    ],
)
def test_a_file_of_another_kind_is_refused_by_entry(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text, errors="surrogateescape")
    with pytest.raises(RecordError, match=r"bad\.json") as error:
        read_seed_file(path)
    assert message in str(error.value)


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


def test_the_log_is_whole_while_it_grows_and_after_kill_9_in_the_middle(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    lengths = [0]
    for attempt in range(5):
        with _writer(path, pause_s=0):
            time.sleep(0.02 + 0.007 * attempt)
        lengths.append(len(json.loads(path.read_bytes())))
    assert all(a < b for a, b in itertools.pairwise(lengths)), "what earlier writers left is kept"
    with _writer(path, pause_s=0.02):
        for _ in range(40):
            lengths.append(len(json.loads(path.read_bytes())))
            time.sleep(0.01)
    assert lengths == sorted(lengths) and lengths[-1] > lengths[5] + 5


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


def _cell(path: Path, source: Literal["nvml", "process"], *rows: dict[str, DeviceSample]) -> Path:
    folder = CellFolder(path)
    folder.save_config({"model": {"name": "medium"}})
    series = folder.device_series_path("abc")
    writer = DeviceSeriesWriter(series, "abc", source, 1.0, _DEVICES, {})
    for number, samples in enumerate(rows or [_SAMPLES]):
        writer.append(1.7e9 + number, samples, 0.2)
    writer.close()
    return path


def test_a_cell_is_exported_to_all_three_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    without_power = {**_SAMPLES, "GPU-3": DeviceSample("GPU-3", throttle_reasons=("a", "b"))}
    cell = _cell(tmp_path / "0_ddp", "nvml", _SAMPLES, without_power)
    before = sorted(cell.rglob("*"))
    assert main(["export", str(cell), "--out", str(out)]) == 0
    assert sorted(cell.rglob("*")) == before
    written = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert written == [
        out / "gpu_stats_0_ddp.json",
        out / "gpu_stats_0_ddp_multi_gpu.json",
        out / "gpu_timeline.csv",
    ]
    assert read_seed_file(written[0]).values("GPU-0", "power_w") == [150, 150]
    assert read_seed_file(written[1]).values("GPU-3", "power_w") == [150, None]
    with written[2].open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8
    assert rows[1]["memory_used_mib"] == "12750.0" and rows[1]["gpu_index"] == "1"
    assert rows[7]["power_w"] == "" and rows[7]["throttle_reasons"] == "a; b"


def test_a_sweep_is_exported_but_for_cells_without_gpus_and_series_that_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep, out = tmp_path / "sweep", tmp_path / "out"
    for name in "acd":
        _cell(sweep / name, "nvml")
    _cell(sweep / "b", "process")
    assert len(export_folder(sweep / "a", None).written) == 3
    (damaged,) = CellFolder(sweep / "c").device_series_paths()
    damaged.write_text('{"schema_version": 1, "devices": 5}\n')
    assert main(["export", str(sweep), "--out", str(out)]) == 1
    said = capsys.readouterr()
    written = [Path(line).relative_to(out).as_posix() for line in said.out.splitlines()]
    assert [w for w in written if w.endswith(".csv")] == [
        "a/gpu_timeline.csv",
        "d/gpu_timeline.csv",
    ]
    assert "d/gpu_stats_d_multi_gpu.json" in written
    (line,) = said.err.splitlines()
    assert line.startswith(f"scalewise export: left out: {damaged}: not a device series")


def test_files_that_cannot_be_written_or_read_end_with_status_2_and_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, cell = tmp_path / "taken", str(_cell(tmp_path / "a", "nvml"))
    file.write_text(json.dumps([multi_entry(1.7e9, _DEVICES, _SAMPLES)]))
    for words, said in (
        (["export", cell, "--out", str(file)], str(file)),
        (["export", cell, "--out", str(file / "x")], str(file / "x")),
        (["import", str(file), str(file)], str(file)),
        (["import", str(tmp_path / "none"), cell], f"{tmp_path / 'none'}: cannot be read"),
        (["export", str(_cell(tmp_path / "cpu", "process"))], "no GPU was sampled there"),
        (["export", str(tmp_path / "a" / "gpu")], "found no cell and no sweep"),
    ):
        assert main(words) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line
