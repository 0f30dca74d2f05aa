"""Kill a sweep at random moments, resume it each time, and count what is there at the end.

    python benchmarks/soak.py [--kills 200] [--soaks N] [--limit-s S] [--seed 0] [--out FILE.json]

A sweep of 12 cells (1 and 2 devices, CPU) is started again and again. At a random moment SIGKILL
goes to the sweep, to a supervisor or to a rank; then the sweep is resumed. In a fourth of the
kills the sweep goes at once with some of its supervisors and ranks, and is resumed without waiting
for the others: then no rank may be there twice. Kills go on until they
have all been dealt out: when the 12 cells are done, the next 12 are begun in a new folder. After
every sweep each cell must be there exactly once, with the records of one whole run, no result
that was once written may have changed, and no process may be left. Exit status 1 otherwise.

A host with many cores runs several such soaks side by side, each on two cores of its own with a
seed of its own, and shares the kills out among them: each kill still falls into one sweep of 12.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from scalewise.host import usable_cores
from scalewise.records import CellFolder, SweepFolder, read_steps

ROOT = Path(__file__).resolve().parents[1]
STEPS = 10
CELLS = 12
COMMAND = (
    *("-m", "strategy=single,ddp", "hardware=cpu", "hardware.cores_per_device=1"),
    *("tracking=none", "monitor.devices=false"),
    *(f"max_steps={STEPS}", "warmup_steps=2", "batch_size=16", "dataset.samples=400"),
)
CORES = 2
"""Of one soak: as many as the widest cell takes."""
_AT_ONCE = "several at once"
_TARGETS = ("sweep", "supervisor", "rank", _AT_ONCE)
_SHARE = 0.5
"""Of the supervisors and ranks that are killed together with the sweep."""
_END_S = 15.0
_FIRST_S = 0.5
_LAST_S = 12.0
"""A kill comes so long after the one before it, or after the start of the sweep."""


class SoakFailed(AssertionError):  # noqa: N818 - says what was found
    """Something was lost, repeated or left behind."""


@dataclass(frozen=True)
class Kill:
    """One SIGKILL."""

    sweep: str
    """Name of the sweep's folder."""
    target: str
    """``sweep``, ``supervisor``, ``rank`` or ``several at once``."""
    after_s: float
    """Since that sweep was last started or resumed."""
    done: int
    """Cells of the sweep that were done by then."""


@dataclass
class Soak:
    """One folder of sweeps and the processes in it."""

    root: Path
    rng: random.Random
    cells: int = CELLS
    last_s: float = _LAST_S
    until: float = math.inf
    """Of the monotonic clock: after it nothing is killed any more."""
    kills: list[Kill] = field(default_factory=list)
    resumes: int = 0
    sweeps: int = 0
    """Those that ended whole."""
    seen: dict[Path, int] = field(default_factory=dict)
    """Time stamp of every result when it was first seen."""

    @property
    def targets(self) -> Counter[str]:
        """Kills by what they hit."""
        return Counter(kill.target for kill in self.kills)

    def run(self, kills: int) -> None:
        """Deal out ``kills`` kills and end with a whole sweep. Raises :class:`SoakFailed`."""
        while self._goes_on(kills):
            self._run_sweep(self.root / f"sweep-{self.sweeps}", kills)
            self.sweeps += 1
            print(
                f"{self.root.name}: {len(self.kills)} kills, {self.resumes} resumes, "
                f"{self.sweeps} whole sweeps",
                flush=True,
            )

    def _goes_on(self, kills: int) -> bool:
        return len(self.kills) < kills and time.monotonic() < self.until

    def _run_sweep(self, folder: Path, kills: int) -> None:
        """One sweep to its end, with kills until there have been ``kills`` of them in all."""
        while True:
            process, before = self._start(folder), len(self.kills)
            began = time.monotonic()
            while self._goes_on(kills) and self._kill_one(process, folder, began):
                pass
            out, _ = process.communicate(timeout=600)
            if process.returncode == -signal.SIGKILL and self._resumes_at_once:
                continue
            self._wait_for_nobody()
            self._check_results(folder)
            if process.returncode not in (0, 1, -signal.SIGKILL):
                raise SoakFailed(f"the sweep exited with {process.returncode}:\n{out}")
            if process.returncode != 0 and len(self.kills) == before:
                raise SoakFailed(f"a sweep that nobody disturbed failed:\n{out[-3000:]}")
            if process.returncode == 0:
                self._check_whole(folder)
                return

    @property
    def _resumes_at_once(self) -> bool:
        """Whether what the last kill spared is not waited for."""
        return bool(self.kills) and self.kills[-1].target == _AT_ONCE

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
                "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *sys.path]),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def _kill_one(self, sweep: subprocess.Popen[str], folder: Path, began: float) -> bool:
        """SIGKILL to one process, at a moment that may be in any phase of a cell."""
        target = self._next_target()
        moment = time.monotonic() + self.rng.uniform(_FIRST_S, self.last_s)
        while time.monotonic() < moment:
            if sweep.poll() is not None:
                return False
            if self._resumes_at_once:
                self._check_apart()
            time.sleep(0.02)
        if target == _AT_ONCE:
            return self._kill_several(sweep, folder, began)
        if target != "sweep":
            wanted = "supervisor " if target == "supervisor" else ".sweep.worker"
            deadline = time.monotonic() + 20
            while sweep.poll() is None and time.monotonic() < deadline:
                pids = [pid for pid, line in self.processes() if wanted in line]
                if pids:
                    return self._kill(self.rng.choice(pids), target, folder, began)
                time.sleep(0.05)
        return sweep.poll() is None and self._kill(sweep.pid, "sweep", folder, began)

    def _next_target(self) -> str:
        """At random among those hit least: each has its share however far the cells come."""
        fewest = min(self.targets[name] for name in _TARGETS)
        return self.rng.choice([name for name in _TARGETS if self.targets[name] == fewest])

    def _kill(self, pid: int, target: str, folder: Path, began: float) -> bool:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        done = len(list(folder.glob("*/result.json")))
        self.kills.append(Kill(folder.name, target, round(time.monotonic() - began, 2), done))
        return True

    def _kill_several(self, sweep: subprocess.Popen[str], folder: Path, began: float) -> bool:
        """SIGKILL to the sweep, and then to some of its supervisors and ranks."""
        names = ("supervisor ", ".sweep.worker")
        below = [pid for pid, line in self.processes() if any(name in line for name in names)]
        if sweep.poll() is not None or not self._kill(sweep.pid, _AT_ONCE, folder, began):
            return False
        for pid in below:
            if self.rng.random() < _SHARE:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        return True

    def _check_apart(self) -> None:
        """No rank of a cell lives twice. Raises :class:`SoakFailed`."""
        found: dict[tuple[str, str], int] = {}
        for pid, line in self.processes():
            if ".sweep.worker" not in line:
                continue
            place = (line.split()[-1], _variable(pid, "RANK"))
            other = found.setdefault(place, pid)
            # The one seen first may have ended before the other began.
            if other != pid and {other, pid} <= {alive for alive, _ in self.processes()}:
                raise SoakFailed(f"rank {place[1]} of {place[0]} lives twice: {other}, {pid}")

    def processes(self) -> Iterator[tuple[int, str]]:
        """Every living process of these sweeps, known by a variable in its environment.

        With its name and its command line: a supervisor that was forked shows by its name alone.
        """
        mark = f"SCALEWISE_RUNTIME_DIR={self.root / 'runtime'}".encode()
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdecimal() and mark in (entry / "environ").read_bytes().split(b"\0"):
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    yield int(entry.name), f"{(entry / 'comm').read_text().strip()} {command}"
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


def _variable(pid: int, name: str) -> str:
    """Of the environment of a process; empty if it has ended."""
    try:
        words = Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")
    except OSError:
        return ""
    return next((word.partition("=")[2] for word in words if word.startswith(f"{name}=")), "")


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


def soak(
    root: Path,
    kills: int,
    seed: int | str,
    cells: int = CELLS,
    last_s: float = _LAST_S,
    until: float = math.inf,
) -> Soak:
    """One soak in the new folder ``root``. Raises :class:`SoakFailed`."""
    (root / "runtime").mkdir(parents=True)
    run = Soak(root, random.Random(seed), cells, last_s, until)
    run.run(kills)
    return run


def side_by_side(
    root: Path, kills: int, seed: int, cells: int, shares: Sequence[Sequence[int]], until: float
) -> list[Soak]:
    """One soak on each of ``shares``, which are disjoint groups of cores."""

    def one(index: int) -> Soak:
        # The affinity of this thread alone; whatever it starts inherits it.
        os.sched_setaffinity(0, shares[index])
        own = kills // len(shares) + (index < kills % len(shares))
        return soak(root / f"soak-{index}", own, f"{seed}/{index}", cells, until=until)

    with ThreadPoolExecutor(len(shares)) as pool:
        return list(pool.map(one, range(len(shares))))


def summary(runs: Sequence[Soak], seed: int, seconds: float) -> dict[str, object]:
    """What was done, with every kill."""
    return {
        "soaks_side_by_side": len(runs),
        "cores_of_each": CORES,
        "cells_of_a_sweep": runs[0].cells,
        "seed": seed,
        "seconds": round(seconds, 1),
        "kills": sum(len(run.kills) for run in runs),
        "targets": dict(sum((run.targets for run in runs), Counter())),
        "resumes": sum(run.resumes for run in runs),
        "whole_sweeps": sum(run.sweeps for run in runs),
        "results_each_written_once": sum(len(run.seen) for run in runs),
        "processes_left": sum(len(list(run.processes())) for run in runs),
        "every_kill": [
            {"soak": index, **asdict(kill)} for index, run in enumerate(runs) for kill in run.kills
        ],
    }


def main() -> int:
    cores = usable_cores()
    most = max(1, len(cores) // CORES)
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument(
        "--soaks", type=int, default=most, help="side by side; default: %(default)s"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cells", type=int, default=CELLS)
    parser.add_argument("--limit-s", type=float, default=math.inf, help="kill no longer than this")
    parser.add_argument("--out", type=Path, help="a file for the summary, as JSON")
    arguments = parser.parse_args()
    if not 1 <= arguments.soaks <= most:
        parser.error(
            f"--soaks: found {arguments.soaks}; allowed: 1 to {most} on {len(cores)} cores"
        )
    shares = [cores[i * CORES : (i + 1) * CORES] for i in range(arguments.soaks)]
    root = Path(tempfile.mkdtemp(prefix="scalewise-soak-"))
    began = time.monotonic()
    try:
        runs = side_by_side(
            root, arguments.kills, arguments.seed, arguments.cells, shares,
            until=began + arguments.limit_s,
        )  # fmt: skip
    except SoakFailed as failure:
        print(f"failed: {failure}\nthe folder is kept: {root}")
        return 1
    told = summary(runs, arguments.seed, time.monotonic() - began)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(told, indent=1) + "\n")
    shutil.rmtree(root)
    print(
        f"{told['kills']} kills in {told['seconds']} s by {len(runs)} soaks side by side: "
        f"{told['targets']}; resumed {told['resumes']} times; {told['whole_sweeps']} sweeps of "
        f"{arguments.cells}: every cell was there exactly once, and no process was left"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
