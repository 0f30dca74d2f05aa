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


def test_the_log_is_valid_json_however_it_ends(tmp_path: Path) -> None:
    env = environment(Scenario().h200(4).write(tmp_path / "scenario.txt"))
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


def test_the_screen_shows_a_lost_gpu_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    """On a pseudo-terminal of 80x24, which is left as it was."""
    scenario = Scenario().h200(3).fault(1, "*", GPU_IS_LOST, at=1)
    env = environment(scenario.write(tmp_path / "scenario.txt", from_opening=True))
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    before = termios.tcgetattr(child)
    with subprocess.Popen(
        [*_TOP, "--interval", "0.2"], env={**env, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"},
        stdin=child, stdout=child, stderr=child,
    ) as top:  # fmt: skip
        try:
            text, deadline = "", time.monotonic() + 40
            while not ("every 0.2 s" in text and "GPU 1 is lost: GPU is lost" in text):
                left = deadline - time.monotonic()
                assert left > 0, text[-2000:]
                if select.select([parent], [], [], left)[0]:
                    text += os.read(parent, 65536).decode(errors="replace")
            top.send_signal(signal.SIGINT)
            assert top.wait(10) == 0
        finally:
            top.kill()
    assert termios.tcgetattr(child) == before
    os.close(child)
    os.close(parent)
