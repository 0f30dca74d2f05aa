"""What a run of a script left where others will find it."""

import os
from pathlib import Path

from scalewise.script import changed_files

SINCE = 1_000.0


def write(path: Path, at: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    os.utime(path, (at, at))


def test_what_all_runs_write_is_named_and_what_is_of_one_is_not(tmp_path: Path) -> None:
    for name in ("snapshot.pt", "out/log.txt"):
        write(tmp_path / name, SINCE + 1)
    for own in ("runs/train-r0/last.pt", "train-r0.log", ".git/index", "__pycache__/a.pyc"):
        write(tmp_path / own, SINCE + 1)
    write(tmp_path / "data.bin", SINCE - 1)
    write(tmp_path / "multirun/sweep/sweep.json", SINCE + 1)
    write(tmp_path / "multirun/sweep/cell/ranks/rank0.json", SINCE + 1)
    assert changed_files(tmp_path, SINCE, "train-r0") == ["out/log.txt", "snapshot.pt"]
