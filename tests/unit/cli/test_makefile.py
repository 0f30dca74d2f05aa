"""What the Makefile takes on its command line."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def make(*words: str) -> subprocess.CompletedProcess[str]:
    # These tests may run below `make test`, whose flags are not theirs.
    own = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    return subprocess.run(
        ["make", "--dry-run", *words], cwd=ROOT, env=own, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


def check_of_length(*words: str) -> str:
    """The command that compares MAX_ITERS with the warm-up of a matrix."""
    lines = make("test-matrix", *words).stdout.splitlines()
    return next(line for line in lines if "MAX_ITERS" in line)


REFUSED = tomllib.loads(Path(__file__).with_name("refused.toml").read_text())["make"]


@pytest.mark.parametrize(("typed", "message"), REFUSED.items())
def test_a_value_that_would_be_misread_is_refused(typed: str, message: str) -> None:
    ended = make(*shlex.split(typed))
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert message in line


def test_a_matrix_shorter_than_its_warm_up_is_refused_by_the_name_that_was_typed() -> None:
    for matrix, warmup_steps in (("small", 40), ("full", 20)):
        recipe = check_of_length(f"MATRIX={matrix}", f"MAX_ITERS={warmup_steps}")
        ended = subprocess.run(["bash", "-c", recipe], capture_output=True, text=True, check=False)
        assert ended.returncode == 2
        assert f"MAX_ITERS: found '{warmup_steps}'; allowed: {warmup_steps + 1} or more" in (
            ended.stderr
        )
        enough = check_of_length(f"MATRIX={matrix}", f"MAX_ITERS={warmup_steps + 1}")
        subprocess.run(["bash", "-c", enough], check=True)
    assert "MAX_ITERS" not in make("test-matrix", "MAX_ITERS=12", "ARGS=warmup_steps=2").stdout


@pytest.mark.parametrize("target", ["report", "wandb-sync"])
def test_a_target_that_needs_a_folder_asks_for_it(target: str) -> None:
    assert f"make {target} FOLDER=multirun/<sweep>" in make(target).stdout
    assert "allowed: make" not in make(target, "FOLDER=multirun/x").stdout


@pytest.mark.parametrize(("typed", "is_off"), [("y", False), ("n", True), ("false", True)])
def test_yes_and_no_are_what_they_say(typed: str, is_off: bool) -> None:
    ended = make("test-matrix", f"GPU_MONITOR={typed}")
    assert ended.returncode == 0, ended.stderr
    assert ("monitor.devices=false" in ended.stdout) == is_off


def test_clusters_are_left_to_a_target_of_their_own() -> None:
    assert re.findall(r"-m '([^']+)'", make("test").stdout) == ["not cluster"]
    assert "-m cluster" in make("cluster-test").stdout


def test_train_outside_the_environment_says_so_in_one_line() -> None:
    bare = [sys.executable, "-I", "-S", str(ROOT / "train.py")]
    ended = subprocess.run(bare, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: scalewise is not installed for ")
    assert ended.stderr.endswith(": . .venv/bin/activate\n") and ended.stderr.count("\n") == 1


@pytest.mark.parametrize("target", ["setup", "train", "test-matrix"])
def test_what_has_run_outside_the_environment_ends_with_the_line_to_paste(target: str) -> None:
    *_, line = make(target, "BIN=x").stdout.splitlines()
    recipe = re.sub(r"^x/python[^;]*", "(exit 3)", line)
    for environment, said in (("", [". x/activate"]), (str(ROOT / ".venv"), [])):
        ended = subprocess.run(
            ["bash", "-c", recipe], cwd=ROOT, env={**os.environ, "VIRTUAL_ENV": environment},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert ended.returncode == (0 if target == "setup" else 3)
        assert ended.stdout.splitlines()[1:] == said
