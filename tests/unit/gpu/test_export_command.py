"""``scalewise export``: says where to as every other command does."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalewise.cli import main
from scalewise.records import CellFolder, DeviceSample, DeviceSeriesWriter, SampledDevice


def test_out_names_the_folder_and_the_cell_stays_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = CellFolder(tmp_path / "cell"), tmp_path / "out"
    folder.save_config({"model": {"name": "medium"}})
    device = SampledDevice("GPU-0", 0, "NVIDIA H200", 0)
    writer = DeviceSeriesWriter(folder.device_series_path("a"), "a", "nvml", 1.0, (device,), {})
    writer.append(1.7e9, {"GPU-0": DeviceSample("GPU-0", 50.0, 1000.0, 300.0)}, 0.2)
    writer.close()
    before = sorted(folder.path.rglob("*"))
    assert main(["export", str(folder.path), "--out", str(out)]) == 0
    names = ["gpu_stats_cell.json", "gpu_stats_cell_multi_gpu.json", "gpu_timeline.csv"]
    assert capsys.readouterr().out == "".join(f"{out / name}\n" for name in names)
    assert sorted(path.name for path in out.iterdir()) == names
    assert sorted(folder.path.rglob("*")) == before
