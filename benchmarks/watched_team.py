"""Ranks that go through a list of tasks together; one that raises or hangs costs itself only.

Starting ranks takes longer than a small task. The parent gets each task's outcome from
:func:`run_tasks` as soon as all ranks have answered; a rank calls :func:`work_through`. When a rank
fails or a task outlasts its limit all ranks are ended, and fresh ones go on with the next task.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from team import start_ranks

START_S = 60.0
"""What fresh ranks may take on top of their first task: interpreter, torch, the GPU's context."""
_STACKS_S = 0.5
"""From asking a hung rank for its stacks to ending it."""
_LOG_LINES = 60


@dataclass(frozen=True)
class Outcome:
    """How one task ended: the ranks' answers, or what went wrong."""

    task: str
    seconds: float
    """Since the ranks were started or the task before was done."""
    answers: list[Any] = field(default_factory=list)
    """One a rank; none where it failed."""
    error: str | None = None
    """One line."""
    logs: list[str] = field(default_factory=list)
    """The last lines that each rank printed, where it failed."""


def run_tasks(
    script: str,
    options: Sequence[str],
    tasks: Sequence[str],
    ranks: int,
    limit_s: float,
    environment: Mapping[str, str] | None = None,
    start_s: float = START_S,
) -> Iterator[Outcome]:
    """Run ``script --as-rank OPTIONS TASK [TASK ...]`` on every rank until each task has ended.

    A task may take ``limit_s``, the first one after a start ``start_s`` more.
    """
    left = list(tasks)
    while left:
        for outcome in _one_team(script, options, left, ranks, limit_s, environment, start_s):
            left = left[1:]
            yield outcome


def work_through(tasks: Sequence[str], do: Callable[[str], Any]) -> None:
    """Do the tasks on this rank and answer each. Ends the process.

    Without farewell: tearing down a process group whose peers are gone can hang.
    """
    from scalewise.host import answer_requests

    answer_requests()
    folder, rank = Path(os.environ["SCALEWISE_BENCHMARK_FOLDER"]), int(os.environ["RANK"])
    status = 0
    for number, task in enumerate(tasks):
        try:
            _save(_answer_path(folder, rank, number), do(task))
        except BaseException as error:
            traceback.print_exc()
            _save(_error_path(folder, rank), {"time": time.time(), "line": _line(error)})
            status = 1
            break
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _one_team(
    script: str,
    options: Sequence[str],
    tasks: Sequence[str],
    ranks: int,
    limit_s: float,
    environment: Mapping[str, str] | None,
    start_s: float,
) -> Iterator[Outcome]:
    """Outcomes until all tasks are done or one has failed."""
    with tempfile.TemporaryDirectory(prefix="scalewise-benchmark-") as name:
        folder = Path(name)
        began = time.monotonic()
        processes = start_ranks(script, [*options, *tasks], ranks, folder, environment)
        try:
            for number, task in enumerate(tasks):
                error = _wait(processes, folder, number, limit_s + (0 if number else start_s))
                seconds, began = time.monotonic() - began, time.monotonic()
                if error is not None:
                    yield Outcome(task, seconds, error=error, logs=_logs(folder, ranks))
                    return
                paths = [_answer_path(folder, rank, number) for rank in range(ranks)]
                yield Outcome(task, seconds, [json.loads(path.read_text()) for path in paths])
        finally:
            for process in processes:
                process.kill()
                process.wait()


def _wait(
    processes: Sequence[subprocess.Popen[bytes]], folder: Path, number: int, allowed_s: float
) -> str | None:
    """Until all ranks have answered a task: None, or why they never will."""
    deadline = time.monotonic() + allowed_s
    while True:
        # Asked before the answers: what ends after it has answered has not failed.
        ended = [process.poll() for process in processes]
        missing = [
            rank
            for rank in range(len(processes))
            if not _answer_path(folder, rank, number).exists()
        ]
        if not missing:
            return None
        if any(ended[rank] is not None for rank in missing):
            return _first_error(folder, ended)
        if time.monotonic() > deadline:
            from scalewise.host import STACKS_SIGNAL

            for process in processes:
                process.send_signal(STACKS_SIGNAL)
            time.sleep(_STACKS_S)
            who = ", ".join(map(str, missing))
            return f"no answer from rank {who} within {allowed_s:g} s"
        time.sleep(0.05)


def _first_error(folder: Path, ended: Sequence[int | None]) -> str:
    """What the rank that failed first died of: the others die of its absence."""
    paths = [_error_path(folder, rank) for rank in range(len(ended))]
    said = [
        (json.loads(path.read_text()), rank) for rank, path in enumerate(paths) if path.exists()
    ]
    if said:
        error, rank = min(said, key=lambda one: one[0]["time"])
        return f"rank {rank}: {error['line']}"
    return ", ".join(f"rank {r} ended with {s}" for r, s in enumerate(ended) if s is not None)


def _logs(folder: Path, ranks: int) -> list[str]:
    texts = [(folder / f"rank{rank}.log").read_text(errors="replace") for rank in range(ranks)]
    return ["\n".join(text.splitlines()[-_LOG_LINES:]) for text in texts]


def _line(error: BaseException) -> str:
    from scalewise.train import failure_line

    return failure_line(error)


def _answer_path(folder: Path, rank: int, number: int) -> Path:
    return folder / f"rank{rank}.{number}.json"


def _error_path(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.error.json"


def _save(path: Path, value: Any) -> None:
    """Whole or not at all: the parent looks for it all the time."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(value))
    unfinished.replace(path)
