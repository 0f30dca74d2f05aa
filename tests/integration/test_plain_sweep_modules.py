"""A plain sweep passes through few modules: what each process imports, from a real run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_WATCH = """
import atexit, json, os, subprocess, sys

def _write(kind):
    names = sorted(n for n in sys.modules if n.partition(".")[0] == "scalewise")
    with open(f"{os.environ['MODULES_FOLDER']}/{kind}-{os.getpid()}.json", "w") as file:
        json.dump({"command": sys.orig_argv, "modules": names}, file)

atexit.register(_write, "end")
_exit = os._exit

def _exit_at_once(status):  # ranks end like this
    _write("end")
    _exit(status)

os._exit = _exit_at_once
_start = subprocess.Popen.__init__

def _watched(self, args, *rest, **named):
    if any("scalewise.supervisor" in str(word) for word in args):
        _write("first_cell")
        subprocess.Popen.__init__ = _start
    _start(self, args, *rest, **named)

subprocess.Popen.__init__ = _watched
"""


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Modules of ours by kind of process: first_cell, sweep, supervisor, rank."""
    folder = tmp_path_factory.mktemp("modules")
    (folder / "sitecustomize.py").write_text(_WATCH)
    paths = [str(folder), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    subprocess.run(
        [sys.executable, ROOT / "train.py", "-m", "model=mlp_258k", "strategy=single,ddp",
         "hardware=cpu", "max_steps=4", "warmup_steps=1", "tracking=none", "repeats=1",
         "hydra.launcher.warm=false", f"hydra.sweep.dir={folder}/sweep"],
        check=True, capture_output=True, timeout=170, cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)),
             "MODULES_FOLDER": str(folder), "SCALEWISE_RUNTIME_DIR": f"{folder}/runtime"},
    )  # fmt: skip
    found: dict[str, set[str]] = {}
    for path in folder.glob("*.json"):
        written = json.loads(path.read_text())
        found.setdefault(_kind(path, written["command"]), set()).update(written["modules"])
    return found


def _kind(path: Path, command: list[str]) -> str:
    if path.name.startswith("first_cell"):
        return "first_cell"
    words = " ".join(command)
    for kind, part in (("supervisor", "scalewise.supervisor"), ("rank", "scalewise.sweep.worker")):
        if part in words:
            return kind
    return "sweep" if "train.py" in words else "other"


@pytest.mark.parametrize(("kind", "most"), [("first_cell", 90), ("supervisor", 30), ("rank", 120)])
def test_a_process_imports_few_modules(imported: dict[str, set[str]], kind: str, most: int) -> None:
    assert 0 < len(imported[kind]) <= most


def test_a_sweep_with_its_report_passes_through_few_modules(imported: dict[str, set[str]]) -> None:
    to_result = imported["first_cell"] | imported["supervisor"] | imported["rank"]
    assert len(to_result) <= 121
    assert len(set().union(*imported.values())) <= 189
