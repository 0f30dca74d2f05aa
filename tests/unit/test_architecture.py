"""The house stands as designed. Who may import whom is checked by import-linter (``make check``);
here is what imports alone do not show."""

import ast
import functools
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
PACKAGE = SOURCE / "scalewise"
ROOMS = sorted(
    ".".join(path.parent.relative_to(SOURCE).parts) for path in PACKAGE.glob("*/**/__init__.py")
)
HEAVY = {"torch", "pytorch_lightning", "lightning", "lightning_fabric", "hydra", "pynvml"}
SEAMS = {
    "pynvml": {"gpu/nvml.py"},
    "trackio": {"tracking/trackio.py"},
    "wandb": {"tracking/wandb.py"},
    "omegaconf": {
        "cli/exits.py", "cli/hydra_main.py", "cli/overrides.py",
        "config/reader.py", "sweep/compose.py", "sweep/launcher.py",
    },
    "hydra": {
        "cli/exits.py", "cli/hydra_main.py", "cli/overrides.py",
        "sweep/compose.py", "sweep/launcher.py",
    },
}  # fmt: skip
"""Libraries and the files that may import them."""


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_says_what_it_is_for_and_what_it_offers(room: str) -> None:
    front = SOURCE.joinpath(*room.split("."), "__init__.py")
    doc = ast.get_docstring(ast.parse(front.read_text(encoding="utf-8")))
    assert 1 <= len(doc.splitlines()) <= 15
    offered = importlib.import_module(room).__all__ if front.with_suffix(".pyi").exists() else []
    assert all(hasattr(importlib.import_module(room), name) for name in offered)


@pytest.mark.parametrize("library", SEAMS)
def test_an_outside_thing_has_one_seam(library: str) -> None:
    users = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if any(name.partition(".")[0] == library for name in imported(path))
    }
    assert users <= SEAMS[library]


@functools.cache
def imported(path: Path) -> list[str]:
    """Every module a file imports, inside functions too, but for type checkers' blocks."""
    found, waiting = list[str](), [ast.parse(path.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
            continue
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.append(node.module or "")
        waiting += ast.iter_child_nodes(node)
    return found


def test_private_modules_of_torch_are_used_in_one_file() -> None:
    private = re.compile(r"\btorch(\.\w+)*\._(C|dynamo|inductor|functorch)\b|\bdistributed_c10d\b")
    users = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if private.search(path.read_text(encoding="utf-8"))
    }
    assert users == {"train/torch_internals.py"}


LIGHT = [
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    for room in ("host", "records", "analysis", "report")
    for path in (PACKAGE / room).rglob("*.py")
]


@pytest.mark.parametrize(
    ("names", "never"),
    [
        (LIGHT, HEAVY),
        (["scalewise.supervisor.supervisor"], {*HEAVY, "omegaconf", "numpy"}),
        (["scalewise", "scalewise.cli.hydra_main", "hydra_plugins.scalewise"], {"torch", "pandas"}),
        (["scalewise.doctor.examination", "scalewise.report:show_doctor"],
         {*HEAVY, "omegaconf", "wandb", "trackio"}),
        (["scalewise.sweep.launcher", "scalewise.cluster.ray_executor"], {"ray"}),
        (["scalewise:monitor"], {"pytorch_lightning"}),
    ],
    ids=["light rooms", "supervisor", "train", "doctor", "launchers", "script"],
)  # fmt: skip
def test_what_is_used_loads_nothing_it_does_not_need(names: list[str], never: set[str]) -> None:
    script = (
        f"import sys, pkgutil; [pkgutil.resolve_name(name) for name in {names!r}];"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    loaded = subprocess.check_output([sys.executable, "-c", script], text=True).split()
    assert never.isdisjoint(loaded)


def test_threads_and_streams_of_a_rank_are_made_where_their_device_is_set() -> None:
    users = {
        f"{path.relative_to(PACKAGE)}: {call}"
        for room in ("train", "doctor")
        for path in (PACKAGE / room).rglob("*.py")
        for call in calls(path)
        if call in ("threading.Thread", "Thread", "torch.cuda.stream")
        and path != PACKAGE / "train" / "recording" / "background.py"
    }
    # The doctor copies between two GPUs on purpose.
    assert users == {"doctor/copies.py: torch.cuda.stream"}


CHANGING = {
    "LocalCell", "MarkedStep", "Occupancy", "QueuedCell", "RankProcess", "RayCell", "Replays",
    "RunningCell", "SlurmCell", "StepWindows", "SweepReport",
    "PointClouds", "SensorStreams", "Stdlib", "SyntheticText", "SyntheticTokens", "Tabular",
    "TabularWindows", "TextClassification", "TextFile", "TokenFolder",
}  # fmt: skip
"""Dataclasses that change while something runs, and data sets, which keep what they made."""


def test_what_is_known_does_not_change() -> None:
    found = {
        node.name
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for text in map(ast.unparse, getattr(node, "decorator_list", ()))
        if text.startswith("dataclass") and "frozen=True" not in text
    }
    assert found == CHANGING


def calls(path: Path) -> Iterator[str]:
    """What a file calls, as it is written there."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)


def test_the_page_of_the_house_names_files_that_exist_and_draws_its_rooms() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w/]+\.py)`", text)
    assert len(named) > 20
    assert [name for name in named if not any((b / name).exists() for b in (PACKAGE, ROOT))] == []
    sys.path.insert(0, str(ROOT / "tools"))
    import architecture_picture

    assert architecture_picture.page_with_picture(text) == text
