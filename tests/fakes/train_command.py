"""``train.py`` as a user runs it: a process of its own, in a folder of its own."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from scalewise.records import CellFolder, PlannedCell, SweepFolder, read_heartbeat

ROOT = Path(__file__).resolve().parents[2]
INHERITED_PATH = os.environ.get("PYTHONPATH", "").split(os.pathsep)
"""On a rented host the packages may lie in a folder of their own."""
LEAN = ("max_steps=12", "warmup_steps=2", "tracking=none", "monitor.devices=false")
SMALL = (*LEAN, "batch_size=16")
"""For models on the shipped tabular data, whose size the sweep would import torch to look at."""


@dataclass(frozen=True)
class Finished:
    """A run that has ended."""

    status: int
    out: str
    err: str
    folder: Path | None
    """The sweep's, if the run made a new one."""

    @property
    def sweep(self) -> SweepFolder:
        assert self.folder is not None, self.err
        return SweepFolder(self.folder)

    def cells(self) -> dict[str, tuple[PlannedCell, CellFolder]]:
        """By name."""
        return {planned.name: (planned, folder) for planned, folder in self.sweep.cells()}

    def by_strategy(self) -> dict[str, CellFolder]:
        return {name.split("-")[2]: folder for name, (_, folder) in self.cells().items()}

    def only_cell(self) -> CellFolder:
        ((_, folder),) = self.cells().values()
        return folder


@dataclass
class Train:
    """Runs ``train.py``; its processes are known by a variable in their environment."""

    cwd: Path
    environment: dict[str, str]
    script: tuple[str, ...] = (sys.executable, str(ROOT / "train.py"))
    always: tuple[str, ...] = ()
    """Arguments of every run, after its own."""
    patience_s: float = 170
    """How long a run may take."""
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, *arguments: str, cwd: Path | None = None, **env: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*self.script, *arguments, *self.always], cwd=cwd or self.cwd,
            env={**self.environment, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, start_new_session=True,
        )  # fmt: skip
        self.started.append(process)
        return process

    def __call__(self, *arguments: str, cwd: Path | None = None, **env: str) -> Finished:
        before = self.sweeps(cwd)
        return self.finish(self.start(*arguments, cwd=cwd, **env), before, cwd)

    def finish(
        self, process: subprocess.Popen[str], before: AbstractSet[Path] = frozenset(),
        cwd: Path | None = None,
    ) -> Finished:  # fmt: skip
        """Wait for a run that was started when ``before`` were its folder's sweeps."""
        out, err = process.communicate(timeout=self.patience_s)
        new = self.sweeps(cwd) - before
        return Finished(process.returncode, out, err, new.pop() if len(new) == 1 else None)

    def sweeps(self, cwd: Path | None = None) -> set[Path]:
        return set(((cwd or self.cwd) / "multirun").glob("*"))

    def training(
        self, before: AbstractSet[Path] = frozenset(), cwd: Path | None = None, beyond: int = 0
    ) -> CellFolder:
        """The only cell of a new sweep, once its ranks have made more than so many steps."""
        sweep = SweepFolder(wait_for(lambda: self.sweeps(cwd) - before, "a sweep").pop())
        wait_for(sweep.plan_path.exists, "its plan")
        ((planned, folder),) = sweep.cells()
        wait_for(lambda: makes_steps(folder, planned.devices or 1, beyond), "steps", 90)
        return folder

    def ranks(self) -> list[int]:
        """The living processes of ranks."""
        return [pid for pid, line in self.processes().items() if "scalewise.sweep.worker" in line]

    def processes(self) -> dict[int, str]:
        """Every living process of ours with its command line."""
        mark = f"SCALEWISE_RUNTIME_DIR={self.environment['SCALEWISE_RUNTIME_DIR']}".encode()
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdecimal() and mark in (entry / "environ").read_bytes().split(b"\0"):
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    found[int(entry.name)] = command
            except OSError:
                continue
        return found


def wait_for(condition: Callable[[], Any], what: str, seconds: float = 60) -> Any:
    """The first true value of ``condition``."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain for {what}"
        time.sleep(0.05)
    return value


def makes_steps(folder: CellFolder, ranks: int = 1, beyond: int = 0) -> bool:
    """Whether all ranks of a cell have made more than so many steps."""
    beats = [read_heartbeat(folder.heartbeat_path(rank)) for rank in range(ranks)]
    return all(beat is not None and beat.step > beyond for beat in beats)


def listening(pids: Collection[int]) -> set[str]:
    """The addresses on which processes accept connections over TCP."""
    found = set()
    for pid in pids:
        try:
            sockets = psutil.Process(pid).net_connections(kind="inet")
        except psutil.NoSuchProcess:
            continue
        found |= {one.laddr.ip for one in sockets if one.status == psutil.CONN_LISTEN}
    return found


def make_train(root: Path) -> Train:
    (root / "work").mkdir(parents=True)
    (root / "home").mkdir()
    foreign = ("WANDB_", "TRACKIO_", "HYDRA_", "SLURM_", "SCALEWISE_", "MASTER_", "TORCHELASTIC_")
    return Train(
        root / "work",
        {
            **{k: v for k, v in os.environ.items() if not k.startswith(foreign)},
            "HOME": str(root / "home"),
            "SCALEWISE_RUNTIME_DIR": str(root / "runtime"),
            "TRACKIO_DIR": str(root / "trackio"),
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *filter(None, INHERITED_PATH)]),
            "COLUMNS": "500",
            # Its font cache takes seconds to make: once for all tests.
            "MPLCONFIGDIR": str(Path(tempfile.gettempdir()) / f"scalewise-tests-{os.getuid()}"),
        },
    )


def end(train: Train) -> dict[int, str]:
    """End what still lives, and return it."""
    for process in train.started:
        if process.poll() is None:
            process.kill()
        process.communicate()
    left = train.processes()
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return left


def copy_own_code(folder: Path) -> Path:
    """A user's folder, elsewhere, with his code as the modules ``mine`` and ``lit``."""
    folder.mkdir()
    shutil.copy(ROOT / "tests" / "fakes" / "own_code.py", folder / "mine.py")
    shutil.copy(ROOT / "tests" / "fakes" / "own_lightning.py", folder / "lit.py")
    return folder
