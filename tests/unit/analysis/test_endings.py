"""The line that raised, read from tracebacks, and the log beside it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from scalewise.analysis import ending_lines
from scalewise.records import CellFolder, Ending, line_that_raised

BOOM = Ending("failed", "exception", "boom", 1, 1, number=1)
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
def test_the_innermost_line_of_the_user_is_named(text: str, at: str | None) -> None:
    assert line_that_raised(text) == at


def test_the_log_is_found_where_a_later_try_has_moved_it(tmp_path: Path) -> None:
    folder = CellFolder(tmp_path)
    assert folder.find_log(BOOM) is None
    log = folder.log_path(1, "err")
    log.parent.mkdir()
    log.touch()
    assert folder.find_log(BOOM) == log
    moved = tmp_path / "attempts" / "1.logs" / "rank1.err"
    moved.parent.mkdir(parents=True)
    moved.touch()
    assert folder.find_log(BOOM) == moved
    assert folder.find_log(replace(BOOM, outcome="skipped")) is None


def test_cells_that_ended_alike_are_said_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    at = f"{tmp_path}/my_model.py"
    frames = (
        f'  File "{at}", line 3, in fit',
        "    step()",
        f'  File "{at}", line 12, in f',
        "    x.y",
    )
    ending = replace(BOOM, raised_at=f"{at}:12", last_lines=frames)
    log = tmp_path / "sweep" / "a" / "logs" / "rank1.err"
    skipped = Ending("skipped", "host", "no second device")
    cells = [*((name, ending, log) for name in ("a", "b", "c")), ("d", skipped, None)]
    assert list(ending_lines(cells)) == [
        "failed: a, b and 1 more: boom",
        "  raised at my_model.py:12: x.y",
        "  log: sweep/a/logs/rank1.err",
        "skipped: d: no second device",
    ]
