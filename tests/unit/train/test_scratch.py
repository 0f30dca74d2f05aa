from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scalewise.host import scratch_folder

_HOLDER = """
import sys
from scalewise.host import scratch_folder
with scratch_folder("doctor") as folder:
    (folder / "rank0.json").write_text("{}")
    print(folder, flush=True)
    sys.stdin.read()
"""


def test_a_folder_of_a_killed_process_is_removed_and_that_of_a_living_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCALEWISE_RUNTIME_DIR", str(tmp_path))
    command = [sys.executable, "-c", _HOLDER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        theirs = Path(holder.stdout.readline().strip())
        with scratch_folder("doctor") as ours:
            assert theirs.is_dir() and ours.is_dir()
        holder.send_signal(signal.SIGKILL)
    assert theirs.is_dir(), "nobody was left to remove it"
    with scratch_folder("doctor") as ours:
        assert list((tmp_path / "doctor").glob("*/")) == [ours]
    assert list((tmp_path / "doctor").iterdir()) == []
