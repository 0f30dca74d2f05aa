"""What the Makefile takes on its command line."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def make(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "--dry-run", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("typed", ["maybe", "y maybe"])
def test_a_word_that_is_neither_yes_nor_no_is_refused(typed: str) -> None:
    ended = make("test-matrix", f"GPU_MONITOR={typed}")
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert f"GPU_MONITOR: found '{typed}'; allowed: y or n" in line


@pytest.mark.parametrize(("typed", "is_off"), [("y", False), ("n", True), ("false", True)])
def test_yes_and_no_are_what_they_say(typed: str, is_off: bool) -> None:
    ended = make("test-matrix", f"GPU_MONITOR={typed}")
    assert ended.returncode == 0, ended.stderr
    assert ("monitor.devices=false" in ended.stdout) == is_off


def test_every_integration_test_runs_once_whatever_its_marks() -> None:
    """``make test`` divides them by marks; those with a cluster have a target of their own."""
    chosen = re.findall(r"-m '([^']+)'", make("test").stdout)
    assert len(chosen) == 2, chosen
    for cluster, alone, timing in itertools.product((False, True), repeat=3):
        marks = {"cluster": cluster, "alone": alone, "timing": timing}
        assert sum(eval(words, {}, marks) for words in chosen) == (not cluster), marks
