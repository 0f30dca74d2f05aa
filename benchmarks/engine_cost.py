"""What the engine itself costs: a cell that does nothing, and a launcher that only waits.

    python benchmarks/engine_cost.py [--cells 1000] [--wait 20]

The real engine runs real supervisors' stand-ins: a process that answers "done" at once (what is
left is the engine's own work a cell), then one that answers after a while (what the engine takes
while it waits). CPU seconds, not wall time, so that a busy machine does not show; the stand-in's
own start is its own and is told apart.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

from hydra import compose, initialize_config_dir

from scalewise.config import conf_dir, resolve
from scalewise.supervisor import Outcome
from scalewise.sweep import Cell, local_engine, make_display, running_cells
from scalewise.sweep.plan import plan, request

TARGET_MS = 50.0
TARGET_WAIT_PERCENT = 1.0


def cells(count: int) -> list[Cell]:
    """``count`` repeats of one cell."""
    overrides = [f"repeats={count}", "hardware=cpu", "tracking=none"]
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        plain = resolve(compose(config_name="config", overrides=overrides))
    return plan([request(overrides, plain)], 0)


def cpu_s() -> float:
    """CPU seconds of this process, without its children."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def run(folder: Path, todo: list[Cell], seconds: float) -> tuple[float, float]:
    """CPU and wall seconds of the engine with supervisors that answer after ``seconds``."""
    answer = Outcome("done").to_line().decode()
    script = f"read line; sleep {seconds}; printf '%s' '{answer}'"
    real = running_cells.subprocess.Popen

    def stand_in(command: list[str], **options: object) -> object:
        assert "scalewise.supervisor.supervisor" in command
        return real(["sh", "-c", script], **options)  # type: ignore[call-overload]

    display = make_display(Path(os.devnull).open("w"))  # noqa: SIM115 - open until the end
    engine = local_engine(folder, "exclusive", display)
    cpu, wall = cpu_s(), time.monotonic()
    with mock.patch.object(running_cells.subprocess, "Popen", stand_in):
        report = engine.run(todo)
    assert report.count("done") == len(todo)
    return cpu_s() - cpu, time.monotonic() - wall


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cells", type=int, default=1000)
    parser.add_argument("--wait", type=float, default=20.0, help="seconds")
    arguments = parser.parse_args()
    sys.argv[1:] = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SCALEWISE_RUNTIME_DIR"] = f"{folder}/runtime"
        todo = cells(arguments.cells)
        run(Path(folder) / "warm", todo[:2], 0)
        cpu, wall = run(Path(folder) / "many", todo, 0)
        waiting, waited = run(Path(folder) / "one", todo[:1], arguments.wait)
    cell_ms, wall_ms = (seconds * 1e3 / arguments.cells for seconds in (cpu, wall))
    percent = 100 * waiting / waited
    print(f"engine, a cell that does nothing: {cell_ms:.1f} ms CPU, {wall_ms:.1f} ms in all")
    print(f"  (at most {TARGET_MS:g} ms CPU; the rest is the start of a process)")
    print(f"engine, waiting: {percent:.2f} % of a core (at most {TARGET_WAIT_PERCENT:g} %)")
    return 0 if cell_ms <= TARGET_MS and percent <= TARGET_WAIT_PERCENT else 1


if __name__ == "__main__":
    raise SystemExit(main())
