"""The line that raised, read from tracebacks, and the log beside it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from scalewise.analysis import Blame, Fate, blame_last, fate_lines
from scalewise.analysis.summary import blame
from scalewise.records import Attempt, CellFolder, RankError

ATTEMPT = Attempt(1, "failed", "exception", "rank 1: ValueError: boom", 1, 1, (), 100.0, 110.0)
THEIRS = '  File "/home/user/project/my_model.py", line 12, in training_step\n    loss = f(x)\n'
TORCH = (
    '  File "/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 125, in forward\n'
)
OURS = '  File "/venv/lib/python3.11/site-packages/scalewise/train/fit.py", line 7, in run\n'
CHECKOUT = '  File "/opt/scalewise/src/scalewise/models/mlp.py", line 40, in forward\n'
HEAD = "Traceback (most recent call last):\n"
CAUSED = "\nThe above exception was the direct cause of the following exception:\n\n"


@pytest.mark.parametrize(
    ("text", "at"),
    [
        (HEAD + OURS + THEIRS + TORCH + "ValueError: boom", "/home/user/project/my_model.py:12"),
        (HEAD + OURS + TORCH + "ValueError: boom", OURS.split('"')[1] + ":7"),
        (HEAD + CHECKOUT + TORCH, "/opt/scalewise/src/scalewise/models/mlp.py:40"),
        (HEAD + THEIRS + CAUSED + HEAD + OURS + TORCH, "/home/user/project/my_model.py:12"),
        ("Killed", None),
    ],
)
def test_the_innermost_line_of_the_user_is_named(tmp_path: Path, text: str, at: str | None) -> None:
    CellFolder(tmp_path).save_rank_error(RankError(1, 105.0, "exception", "boom", text))
    assert blame(tmp_path, ATTEMPT).at == at


def test_a_traceback_of_another_try_is_not_taken_for_this_ones(tmp_path: Path) -> None:
    error = RankError(1, 95.0, "exception", "boom", HEAD + CHECKOUT)
    CellFolder(tmp_path).save_rank_error(error)
    own = replace(ATTEMPT, last_lines=tuple((HEAD + THEIRS).splitlines()))
    assert blame(tmp_path, own).at == "/home/user/project/my_model.py:12"


def test_the_log_is_found_where_a_later_try_has_moved_it(tmp_path: Path) -> None:
    assert blame(tmp_path, ATTEMPT).log is None
    log = CellFolder(tmp_path).log_path(1, "err")
    log.parent.mkdir()
    log.touch()
    assert blame(tmp_path, ATTEMPT).log == log
    moved = tmp_path / "attempts" / "1.logs" / "rank1.err"
    moved.parent.mkdir(parents=True)
    moved.touch()
    assert blame(tmp_path, ATTEMPT).log == moved
    assert blame_last(tmp_path, [ATTEMPT, replace(ATTEMPT, outcome="skipped")]) == Blame(None, None)


def test_cells_of_one_fate_are_said_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    found = Blame(f"{tmp_path}/my_model.py:12", tmp_path / "sweep" / "a" / "logs" / "rank1.err")
    fates = [Fate(name, "failed", "boom", found) for name in ("a", "b", "c")]
    skipped = Fate("d", "skipped", "no second device", Blame(None, None))
    assert list(fate_lines([*fates, skipped])) == [
        "failed: a, b and 1 more: boom",
        "  raised at my_model.py:12",
        "  log: sweep/a/logs/rank1.err",
        "skipped: d: no second device",
    ]
