"""One process takes the place of a rank, and leaves no trace of it to what it starts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scalewise.host import ENV_SCRIPT
from scalewise.records import CellFolder
from scalewise.script import changed_files, python_path
from scalewise.script.place import take_place


def environment(folder: Path, before: str | None = None) -> dict[str, str]:
    place = {
        "folder": str(folder), "rank": 0, "local_rank": 0, "world_size": 1, "hosts": 1,
        "cwd": str(folder), "cores": 2, "as_torchrun": False, "rehearsed": False,
    }  # fmt: skip
    return {
        ENV_SCRIPT: json.dumps(place),
        "PYTHONPATH": python_path(before),
        "SCALEWISE_DEVICE": json.dumps({"kind": "cpu", "name": "a CPU", "cores": []}),
    }


def test_the_first_process_that_trains_takes_the_place_and_no_child_of_it(tmp_path: Path) -> None:
    child = take_place(environment(tmp_path), in_child=True)
    assert child is not None and child.rank == 0
    first, second = environment(tmp_path), environment(tmp_path)
    taken = take_place(first)
    assert taken is not None and taken.rank == 0
    assert take_place(second) is None
    assert take_place(first) is None


@pytest.mark.parametrize("before", [None, "/mine", "/mine:/yours"])
def test_it_leaves_the_search_path_as_it_was(tmp_path: Path, before: str | None) -> None:
    found = environment(tmp_path, before)
    take_place(found)
    assert found.get("PYTHONPATH") == before
    assert ENV_SCRIPT not in found


def train(folder: Path, before: str | None) -> subprocess.CompletedProcess[str]:
    """Run ``train.py`` there, as a rank."""
    return subprocess.run(
        [sys.executable, "train.py"], cwd=folder, env=os.environ | environment(folder, before),
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_next_sitecustomize_is_loaded_and_the_script_is_as_ever(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "sitecustomize.py").write_text("import sys; sys.mine = 'loaded'\n")
    (tmp_path / "sibling.py").write_text("value = 3\n")
    (tmp_path / "train.py").write_text(
        "import sys, sibling, sitecustomize\n"
        "print(__name__, sys.mine, sibling.value, sys.path[0], sitecustomize.__file__)\n"
        "print([p for p in sys.path if p.endswith('script/site')])\n"
    )
    first, second = train(tmp_path, str(tmp_path / "theirs")).stdout.splitlines()
    theirs = tmp_path / "theirs" / "sitecustomize.py"
    assert (first, second) == (f"__main__ loaded 3 {tmp_path} {theirs}", "[]")


def test_one_that_only_ever_goes_backward_is_ended_and_none_that_steps(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "from torch.optim import optimizer as optim\n"
        "watching = torch.autograd.backward.__globals__\n"
        "clock = watching['time'] = type('Clock', (), {})\n"
        "loss = torch.zeros(1, requires_grad=True)\n"
        "taken, other = (torch.optim.SGD([loss], 0.1) for _ in range(2))\n"
        "def passes(count, now):\n"
        "    clock.monotonic = lambda: now\n"
        "    for _ in range(count): loss.sum().backward()\n"
        "passes(0, 5.0)\n"
        "optim._global_optimizer_post_hooks.clear(), optim._global_optimizer_pre_hooks.clear()\n"
        "watching['await_first_step'](None)\n"
        "passes(1001, 65.5)\n"
        "passes(1, 65.0)\n"
        "try: passes(1, 65.5)\n"
        "except SystemExit as ended: print(ended)\n"
        "optim.register_optimizer_step_post_hook(lambda one, *_: one is taken and other.step())\n"
        "taken.step()\n"
        "passes(1, 65.5)\n"
    )
    CellFolder(tmp_path).heartbeat_path(0).parent.mkdir(exist_ok=True)
    CellFolder(tmp_path).heartbeat_path(0).touch()  # another process has taken its place
    done = train(tmp_path, os.environ.get("PYTHONPATH"))
    assert done.returncode == 0, done.stderr
    assert "no step of an optimizer of torch.optim" in done.stdout


def test_what_all_runs_write_is_named_and_what_is_of_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, since = ["out/log.txt", "snapshot.pt"], 1_000.0
    own = ["runs/train-r0/last.pt", "train-r0.log", ".git/index", "__pycache__/a.pyc"]
    sweep = ["multirun/sweep/sweep.json", "multirun/sweep/cell/ranks/rank0.json"]
    words = {1: tmp_path / "words.out", 2: tmp_path / "words.err"}
    for name in (*shared, *own, *sweep, "data.bin", *(path.name for path in words.values())):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        at = since + -1 * (name == "data.bin")
        os.utime(path, (at, at))
    real = os.fstat
    monkeypatch.setattr(os, "fstat", lambda n: words[n].stat() if n in words else real(n))
    assert changed_files(tmp_path, since, "train-r0") == shared
