"""The earlier monitor's files: written, and continued."""

import csv
import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Literal

import pytest

from fakes.kept_sweep import RESULTS
from scalewise.cli import main
from scalewise.gpu import export_folder
from scalewise.gpu.export import JsonArrayFile, multi_entry
from scalewise.records import CellFolder, DeviceSample, DeviceSeriesWriter, SampledDevice

_DEVICES = tuple(
    SampledDevice(f"GPU-{i}", i, "NVIDIA A10G", i, memory_total_mib=24_576) for i in range(4)
)
_MEMORY = (12_800, 12_750, 12_825, 12_780)
_SAMPLES = {
    f"GPU-{i}": DeviceSample(
        f"GPU-{i}", utilization_percent=80 + i, memory_used_mib=_MEMORY[i], power_w=150,
        temperature_c=70 + i,
    )
    for i in range(4)
}  # fmt: skip


def test_the_multi_gpu_format_is_the_seeds_and_makes_no_total_of_what_was_not_read() -> None:
    entry = multi_entry(1.7e9, _DEVICES, _SAMPLES)
    assert entry["multi_gpu_data"][1]["gpu_index"] == 1
    assert entry["aggregate_stats"] == {
        "total_memory_used": 51_155, "total_memory_total": 98_304,
        "total_memory_percent": pytest.approx(52.04, abs=0.01), "average_utilization": 81.5,
        "total_power": 600, "max_temperature": 73, "gpu_count": 4,
    }  # fmt: skip
    samples = {**_SAMPLES, "GPU-2": DeviceSample("GPU-2", utilization_percent=20)}
    entry = multi_entry(1.7e9, _DEVICES, samples)
    assert entry["multi_gpu_data"][2]["power"] is None
    aggregate = entry["aggregate_stats"]
    assert aggregate["total_power"] is None and aggregate["total_memory_used"] is None
    assert aggregate["max_temperature"] == 73


def test_a_log_that_is_there_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    for entry in ({"a": 1}, {"b": 2}, {"c": 3}):
        JsonArrayFile(path).append(entry)
    assert json.loads(path.read_text()) == [{"a": 1}, {"b": 2}, {"c": 3}]
    path.write_text('{"an": "object"}')
    with pytest.raises(ValueError, match="not a JSON array; name another file"):
        JsonArrayFile(path)
    assert path.read_text() == '{"an": "object"}'


def test_a_full_disk_leaves_the_log_as_it_was(tmp_path: Path) -> None:
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
    assert (done.stdout, json.loads(path.read_bytes())) == ("refused\n", [{"n": 1}, {"n": 2}])


def _cell(path: Path, source: Literal["nvml", "process"], *rows: dict[str, DeviceSample]) -> Path:
    folder = CellFolder(path)
    folder.save_config({"model": {"name": "medium"}})
    writer = DeviceSeriesWriter(folder.device_series_path("abc"), "abc", source, 1.0, _DEVICES)
    for number, samples in enumerate(rows or [_SAMPLES]):
        writer.append(1.7e9 + number, samples, 0.2)
    writer.close()
    return path


def test_a_cell_fills_all_three_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    without_power = {**_SAMPLES, "GPU-3": DeviceSample("GPU-3", throttle_reasons=("a", "b"))}
    cell = _cell(tmp_path / "0_ddp", "nvml", _SAMPLES, without_power)
    before = sorted(cell.rglob("*"))
    assert (main(["export", str(cell), "--out", str(out)]), sorted(cell.rglob("*"))) == (0, before)
    written = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert written == [
        out / "gpu_stats_0_ddp.json",
        out / "gpu_stats_0_ddp_multi_gpu.json",
        out / "gpu_timeline.csv",
    ]
    first, everything = (json.loads(path.read_text()) for path in written[:2])
    assert [entry["memory_used"] for entry in first] == [12_800, 12_800]
    assert {entry["gpu_uuid"] for entry in first} == {"GPU-0"}
    assert [entry["multi_gpu_data"][3]["power"] for entry in everything] == [150, None]
    when = [datetime.fromisoformat(entry["timestamp"]).timestamp() for entry in everything]
    assert when == [1.7e9, 1.7e9 + 1]
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
    assert len(export_folder(sweep / "a", None)[0]) == 3
    (damaged,) = CellFolder(sweep / "c").device_series_paths()
    damaged.write_text('{"schema_version": 1, "devices": 5}\n')
    assert main(["export", str(sweep), "--out", str(out)]) == 1
    said = capsys.readouterr()
    written = [Path(line).relative_to(out).as_posix() for line in said.out.splitlines()]
    csvs = [w for w in written if w.endswith(".csv")]
    assert csvs == ["a/gpu_timeline.csv", "d/gpu_timeline.csv"]
    assert "d/gpu_stats_d_multi_gpu.json" in written
    (line,) = said.err.splitlines()
    assert line.startswith(f"warning: left out: {damaged}: not a device series")


def test_files_that_cannot_be_written_or_read_end_with_status_2_and_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, cell = tmp_path / "taken", str(_cell(tmp_path / "a", "nvml"))
    packed = str(RESULTS / "cpu2_matrix.zip")
    file.write_text(json.dumps([multi_entry(1.7e9, _DEVICES, _SAMPLES)]))
    for words, said in (
        (["export", cell, "--out", str(file)], str(file)),
        (["export", cell, "--out", str(file / "x")], str(file / "x")),
        (["export", str(_cell(tmp_path / "cpu", "process"))], "no GPU was sampled there"),
        (["export", packed], f"{packed}: no GPU was sampled there"),
    ):
        assert main(words) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line
