"""Kill a sweep at random moments, resume it each time, and count what is there at the end.

    python benchmarks/soak.py [--kills 200] [--seed 0] [--folder FOLDER]

A sweep of 12 cells (1 and 2 devices, CPU) is started again and again. At a random moment SIGKILL
goes to the sweep, to a supervisor or to a rank; then the sweep is resumed. Kills go on until they
have all been dealt out: when the 12 cells are done, the next 12 are begun in a new folder. After
every sweep each cell must be there exactly once, with the records of one whole run, no result
that was once written may have changed, and no process may be left. Exit status 1 otherwise.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from scalewise.records import CellFolder, SweepFolder, read_steps

ROOT = Path(__file__).resolve().parents[1]
STEPS = 10
CELLS = 12
COMMAND = (
    *("-m", "strategy=single,ddp", "hardware=cpu", "hardware.cores_per_device=1"),
    *("tracking=none", "monitor.devices=false"),
    *(f"max_steps={STEPS}", "warmup_steps=2", "batch_size=16", "dataset.samples=400"),
)
_TARGETS = ("sweep", "supervisor", "rank")
_END_S = 15.0


class SoakFailed(AssertionError):  # noqa: N818 - says what was found
    """Something was lost, repeated or left behind."""


@dataclass
class Soak:
    """One folder of sweeps and the processes in it."""

    root: Path
    rng: random.Random
    cells: int = CELLS
    kills: Counter[str] = field(default_factory=Counter)
    resumes: int = 0
    seen: dict[Path, int] = field(default_factory=dict)
    """Time stamp of every result when it was first seen."""

    def run_sweep(self, number: int, kills: int) -> int:
        """One sweep to its end with up to ``kills`` kills; returns how many there were."""
        folder = self.root / f"sweep-{number}"
        dealt = 0
        while True:
            process = self._start(folder)
            while dealt < kills and self._kill_one(process):
                dealt += 1
            out, _ = process.communicate(timeout=600)
            self._wait_for_nobody()
            self._check_results(folder)
            if process.returncode not in (0, 1, -signal.SIGKILL):
                raise SoakFailed(f"the sweep exited with {process.returncode}:\n{out}")
            if process.returncode == 0:
                self._check_whole(folder)
                return dealt

    def _start(self, folder: Path) -> subprocess.Popen[str]:
        resume = [f"sweep.resume={folder}"] if (folder / "sweep.json").exists() else []
        self.resumes += bool(resume)
        return subprocess.Popen(
            [
                *(sys.executable, str(ROOT / "train.py"), *COMMAND, f"repeats={self.cells // 2}"),
                *(f"hydra.sweep.dir={folder}", *resume),
            ],
            cwd=self.root,
            env={
                **os.environ,
                "SCALEWISE_RUNTIME_DIR": str(self.root / "runtime"),
                "MPLCONFIGDIR": str(Path(tempfile.gettempdir()) / "scalewise-soak-fonts"),
                "PYTHONPATH": str(ROOT / "src"),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def _kill_one(self, sweep: subprocess.Popen[str]) -> bool:
        """SIGKILL to one process, at a moment that may be in any phase of a cell."""
        target = self.rng.choice(_TARGETS)
        moment = time.monotonic() + self.rng.uniform(0.5, 12.0)
        while time.monotonic() < moment:
            if sweep.poll() is not None:
                return False
            time.sleep(0.02)
        if target != "sweep":
            wanted = "scalewise.sweep.supervisor" if target == "supervisor" else ".sweep.worker"
            deadline = time.monotonic() + 20
            while sweep.poll() is None and time.monotonic() < deadline:
                pids = [pid for pid, line in self.processes() if wanted in line]
                if pids:
                    return self._kill(self.rng.choice(pids), target)
                time.sleep(0.05)
        return sweep.poll() is None and self._kill(sweep.pid, "sweep")

    def _kill(self, pid: int, target: str) -> bool:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        self.kills[target] += 1
        return True

    def processes(self) -> Iterator[tuple[int, str]]:
        """Every living process of these sweeps, known by a variable in its environment."""
        mark = f"SCALEWISE_RUNTIME_DIR={self.root / 'runtime'}".encode()
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdecimal() and mark in (entry / "environ").read_bytes().split(b"\0"):
                    line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    yield int(entry.name), line
            except OSError:
                continue

    def _wait_for_nobody(self) -> None:
        deadline = time.monotonic() + _END_S
        while left := dict(self.processes()):
            if time.monotonic() > deadline:
                raise SoakFailed(f"processes are left after {_END_S:g} s: {left}")
            time.sleep(0.1)

    def _check_results(self, folder: Path) -> None:
        """No result that was there has been written again, or is gone."""
        for path, stamp in self.seen.items():
            if path.parents[1] == folder and path.stat().st_mtime_ns != stamp:
                raise SoakFailed(f"{path} was finished and has been repeated")
        for path in folder.glob("*/result.json"):
            self.seen.setdefault(path, path.stat().st_mtime_ns)

    def _check_whole(self, folder: Path) -> None:
        planned = list(SweepFolder(folder).cells())
        ids = Counter(cell.load_result().cell_id for _, cell in planned)
        if len(ids) != self.cells or set(ids.values()) != {1}:
            raise SoakFailed(f"{folder}: {self.cells} cells were asked for; found {dict(ids)}")
        if {p.cell_id for p, _ in planned} != set(ids):
            raise SoakFailed(f"{folder}: a result is not that of its cell")
        names = {path.name for path in folder.iterdir() if (path / "config.yaml").exists()}
        if names != {p.name for p, _ in planned}:
            raise SoakFailed(f"{folder}: folders that no plan knows: {names}")
        for _, cell in planned:
            check_cell(cell)


def check_cell(cell: CellFolder) -> None:
    """The records are those of one whole run. Raises :class:`SoakFailed`."""
    result = cell.load_result()
    for rank in range(result.world_size):
        series = read_steps(cell.steps_path(rank), rank)
        if len(series.rows) != STEPS or series.torn_bytes:
            raise SoakFailed(f"{cell.path}: rank {rank} has {len(series.rows)} step records")
    if cell.ranks_with_steps() != list(range(result.world_size)):
        raise SoakFailed(f"{cell.path}: ranks {cell.ranks_with_steps()}")
    if cell.last_beat() is not None:
        raise SoakFailed(f"{cell.path}: it is done and says that it runs")
    numbers = [attempt.number for attempt in cell.attempts()]
    if numbers != list(range(1, len(numbers) + 1)) or result.attempt != len(numbers) + 1:
        raise SoakFailed(f"{cell.path}: attempts {numbers}, result of attempt {result.attempt}")


def soak(root: Path, kills: int, seed: int, cells: int = CELLS) -> Soak:
    """Deal out ``kills`` kills and end with a whole sweep. Raises :class:`SoakFailed`."""
    (root / "runtime").mkdir(parents=True)
    run = Soak(root, random.Random(seed), cells)
    dealt = number = 0
    while dealt < kills:
        dealt += run.run_sweep(number, kills - dealt)
        number += 1
        print(f"{dealt} kills, {run.resumes} resumes, {number} whole sweeps", flush=True)
    return run


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cells", type=int, default=CELLS)
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="scalewise-soak-"))
    try:
        run = soak(root, arguments.kills, arguments.seed, arguments.cells)
    except SoakFailed as failure:
        print(f"failed: {failure}\nthe folder is kept: {root}")
        return 1
    shutil.rmtree(root)
    print(f"killed {dict(run.kills)}; resumed {run.resumes} times; every cell was there once")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
