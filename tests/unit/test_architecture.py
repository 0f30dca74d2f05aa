"""The house stands as designed: who may import whom, and what the light rooms never load."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from fakes.settings import SETTINGS
from scalewise.records import CellFolder, DeviceInfo, PlannedCell, RankSummary
from scalewise.sweep.job import Job, Outcome

SOURCE = Path(__file__).parents[2] / "src"
PACKAGE = SOURCE / "scalewise"
HEAVY = {"torch", "pytorch_lightning", "lightning", "lightning_fabric", "hydra", "pynvml"}

ALLOWED = {
    "validation": set(),
    "ranges": set(),
    "host": set(),
    "host_identity": set(),
    "errors": set(),
    "plurals": set(),
    "records": {"errors", "validation"},
    "analysis": {"hardware", "paths", "plurals", "records", "validation"},
    "report": {"analysis", "nccl_settings", "plurals", "records", "validation"},
    "models": {"ranges"},
    "datasets": {"errors", "plurals", "ranges", "validation"},
    "optimizers": {"ranges"},
}
"""Rooms whose whole list of neighbours is short enough to be written down."""

FORBIDDEN = {
    "gpu": {"train", "sweep", "tracking", "report", "cli", "commands", "entry", "config"},
    # It leases devices and starts ranks, for the doctor.
    "measure": {"tracking", "cli", "commands", "entry", "config"},
    "tracking": {"train", "sweep", "analysis", "report", "cli", "commands", "entry", "config"},
    "train": {"analysis", "sweep", "report", "cli", "commands", "entry"},
    "config": {"sweep", "report", "cli", "commands", "entry"},
    "sweep": {"report", "cli", "commands", "entry"},
    "explain": {"sweep", "train", "report", "cli", "commands", "entry"},
    "entry": {"cli", "commands"},
}


def rooms() -> dict[str, list[Path]]:
    """Each package or top-level module of scalewise with its files."""
    found: dict[str, list[Path]] = {}
    for path in PACKAGE.rglob("*.py"):
        found.setdefault(path.relative_to(PACKAGE).parts[0].removesuffix(".py"), []).append(path)
    return found


@cache
def imported(path: Path) -> frozenset[str]:
    """Every module a file imports, inside functions too, but for type checkers' blocks."""
    return frozenset(_imported(path))


def _imported(path: Path) -> Iterator[str]:
    waiting: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        waiting += ast.iter_child_nodes(node)


def neighbours(room: str) -> set[str]:
    names = {name for path in rooms()[room] for name in imported(path)}
    parts = [name.split(".") for name in names]
    known = rooms()
    return {p[1] for p in parts if p[0] == "scalewise" and len(p) > 1 and p[1] in known} - {room}


@pytest.mark.parametrize("room", sorted(ALLOWED))
def test_a_room_imports_only_what_lies_below_it(room: str) -> None:
    assert neighbours(room) <= ALLOWED[room]


@pytest.mark.parametrize("room", sorted(FORBIDDEN))
def test_a_room_imports_nothing_that_lies_above_it(room: str) -> None:
    assert not neighbours(room) & FORBIDDEN[room]


@pytest.mark.parametrize(
    ("library", "owners"),
    [
        ("pynvml", {"gpu/nvml.py"}),
        ("trackio", {"tracking/trackio.py", "tracking/trackio_store.py", "tracking/view.py"}),
        (
            "omegaconf",
            {
                "config.py",
                "entry.py",
                "explain.py",
                "sweep/compose.py",
                "sweep/launcher.py",
                "sweep/returns.py",
                "sweep/sweepers.py",
                "train/checkpoint_trust.py",
            },
        ),
        (
            "hydra",
            {
                "command_line.py",
                "entry.py",
                "explain.py",
                "sweep/compose.py",
                "sweep/grid.py",
                "sweep/launcher.py",
                "sweep/returns.py",
                "sweep/sweepers.py",
            },
        ),
    ],
)
def test_an_outside_thing_has_one_seam(library: str, owners: set[str]) -> None:
    users = {
        str(path.relative_to(PACKAGE))
        for paths in rooms().values()
        for path in paths
        if any(name.partition(".")[0] == library for name in imported(path))
    }
    assert users <= owners


def test_a_report_is_asked_through_its_front() -> None:
    inside = {f"scalewise.report.{p.stem}" for p in rooms()["report"]} - {
        "scalewise.report.plot_style"
    }
    outside = [p for room, paths in rooms().items() if room != "report" for p in paths]
    outside += [
        p
        for folder in ("tests", "tools", "benchmarks")
        for p in SOURCE.parent.glob(f"{folder}/**/*.py")
    ]
    assert [str(path) for path in outside if imported(path) & inside] == []


@pytest.mark.parametrize("room", ["records", "analysis", "report"])
def test_importing_a_light_room_loads_nothing_heavy(room: str) -> None:
    modules = [
        ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        for path in rooms()[room]
    ]
    assert loaded_by(*modules) & HEAVY == set()


FAR_FROM_A_SUPERVISOR = {*HEAVY, "omegaconf", "pandas", "numpy", "yaml"}
TRIVIAL_RANK = (
    "import pathlib, sys; folder = pathlib.Path(sys.argv[1]); (folder / 'ranks').mkdir(); "
    "(folder / 'summary.json').rename(folder / 'ranks' / 'rank0.json')"
)


def test_a_supervisor_imports_little_until_its_cell_is_done(tmp_path: Path) -> None:
    """Its cell's devices lie idle while it starts; its ranks are timed while it runs."""
    folder = CellFolder(tmp_path / "sweep" / "cell")
    planned = PlannedCell("id", "config", "cell", (), 0, 1)
    slot = DeviceInfo("cpu", "a processor")
    job = Job(str(folder.path), planned, SETTINGS, (slot,), str(tmp_path), (), ())
    script = (
        "import json, sys\n"
        "from scalewise.sweep import supervisor\n"
        "from scalewise.sweep.ranks import Ranks\n"
        f"Ranks._own = [sys.executable, '-c', {TRIVIAL_RANK!r}, {str(folder.path)!r}]\n"
        "supervisor.main()\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    folder.save_rank(
        RankSummary(0, 0, 1, slot, 1, 1, 1, 1, 1, None, None, None, None, None, None, 1.0, {}, 0, 0)
    )
    (folder.path / "ranks" / "rank0.json").rename(folder.path / "summary.json")
    with subprocess.Popen(
        [sys.executable, "-P", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(job.to_line())
        process.stdin.flush()
        outcome, modules = process.stdout.read().splitlines()
    assert Outcome.from_line(outcome).state == "done"
    loaded = set(json.loads(modules))
    assert {name.partition(".")[0] for name in loaded} & FAR_FROM_A_SUPERVISOR == set()
    assert len([name for name in loaded if name.startswith("scalewise")]) <= 30


def test_a_rank_loads_neither_sweep_nor_analysis_while_it_trains() -> None:
    loaded = loaded_by(
        "scalewise.train.experiment", "scalewise.train.callbacks.monitor", whole=True
    )
    above = ("scalewise.analysis", "scalewise.sweep", "scalewise.report")
    assert [name for name in loaded if name.startswith(above)] == []
    assert "scalewise.measure.step_clock" in loaded


def test_scalewise_itself_and_its_launcher_shim_load_no_torch() -> None:
    loaded = loaded_by("scalewise", "scalewise.entry", "hydra_plugins.scalewise")
    assert "torch" not in loaded


def loaded_by(*modules: str, whole: bool = False) -> set[str]:
    """Top-level modules in a fresh interpreter after importing ``modules``; ``whole``: all."""
    script = (
        f"import sys, json; [__import__(m) for m in {modules!r}];"
        "print(json.dumps(sorted(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    names = set(json.loads(answer.stdout))
    return names if whole else {name.partition(".")[0] for name in names}


def test_threads_and_streams_of_a_rank_are_made_where_their_device_is_set() -> None:
    users = {
        f"{path.relative_to(PACKAGE)}: {call}"
        for room in ("train", "measure")
        for path in rooms()[room]
        for call in calls(path)
        if call in ("threading.Thread", "Thread", "torch.cuda.stream")
        and str(path.relative_to(PACKAGE)) != "train/device.py"
    }
    # The doctor copies between two GPUs on purpose.
    assert users == {"measure/doctor_pairs.py: torch.cuda.stream"}


def calls(path: Path) -> Iterator[str]:
    """What a file calls, as it is written there."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)
