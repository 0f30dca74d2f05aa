"""``scalewise top`` as a user runs it, on the fake driver."""

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

from fakes.nvml.scenario import GPU_IS_LOST, Scenario, environment, gpu_uuid

_TOP = [sys.executable, "-m", "scalewise", "top"]


def _host(tmp_path: Path, scenario: Scenario) -> dict[str, str]:
    return environment(scenario.write(tmp_path / "scenario.txt"))


def test_the_log_is_valid_json_however_it_ends(tmp_path: Path) -> None:
    env = _host(tmp_path, Scenario().h200(4))
    log = tmp_path / "gpu_monitoring.json"
    with subprocess.Popen(
        [*_TOP, "--stats-file", str(log), "--gpu", "2", "--interval", "0.1"], env=env
    ) as top:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and not (
            log.exists() and len(json.loads(log.read_bytes())) >= 5
        ):
            time.sleep(0.05)
        os.kill(top.pid, signal.SIGKILL)
    one = json.loads(log.read_bytes())
    everything = json.loads((tmp_path / "gpu_monitoring_multi_gpu.json").read_bytes())
    assert len(one) >= 5 and len(everything) >= 5
    assert {entry["gpu_index"] for entry in one} == {2}
    rows = [entry["multi_gpu_data"] for entry in everything]
    assert [gpu["gpu_uuid"] for gpu in rows[0]] == [gpu_uuid(i) for i in range(4)]
    assert {row[3]["memory_used"] for row in rows} == {10_240 + 3 * 1024}


class _Terminal:
    """A program on a pseudo-terminal of 80x24."""

    def __init__(self, command: list[str], env: dict[str, str] | None) -> None:
        self._parent, child = pty.openpty()
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self._before = termios.tcgetattr(child)
        self._child = child
        self.process = subprocess.Popen(
            command, env={**(env or os.environ), "TERM": "xterm", "COLUMNS": "80", "LINES": "24"},
            stdin=child, stdout=child, stderr=child,
        )  # fmt: skip
        self.text = ""

    def wait_for(self, words: str, timeout_s: float = 20) -> None:
        deadline = time.monotonic() + timeout_s
        while words not in self.text:
            left = deadline - time.monotonic()
            assert left > 0, f"{words!r} is not in {self.text[-2000:]!r}"
            if select.select([self._parent], [], [], left)[0]:
                self.text += os.read(self._parent, 65536).decode(errors="replace")

    def close(self) -> int:
        """The exit status; the terminal must be as it was."""
        status = self.process.wait(10)
        assert termios.tcgetattr(self._child) == self._before
        os.close(self._child)
        os.close(self._parent)
        return status


def test_the_screen_shows_a_lost_gpu_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    scenario = Scenario().h200(3)
    later = time.monotonic() - scenario.origin + 6  # a busy host takes seconds to start it
    env = _host(tmp_path, scenario.fault(1, "*", GPU_IS_LOST, at=later))
    terminal = _Terminal([*_TOP, "--interval", "0.2"], env)
    terminal.wait_for("every 0.2 s")
    terminal.wait_for("GPU 1 is lost: GPU is lost")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.close() == 0
