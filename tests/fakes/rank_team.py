"""Ranks without a sweep around them: one module, started several times over gloo's variables."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from scalewise.sweep.ports import free_port

_TIMEOUT_S = 150
_POLL_S = 0.1


def run_ranks(module: str, folder: Path, count: int) -> None:
    """Run ``python -m module folder`` as ``count`` ranks of one process group.

    Raises AssertionError with what the ranks wrote to stderr if one of them fails or none ends.
    """
    port, ranks = free_port(), []
    for rank in range(count):
        environment = {
            **os.environ,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "NODE_RANK": "0",
            "LOCAL_RANK": str(rank),
            "RANK": str(rank),
            "WORLD_SIZE": str(count),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path]),
        }
        command = [sys.executable, "-W", "error", "-m", module, str(folder)]
        with (folder / f"rank{rank}.err").open("wb") as errors:
            ranks.append(subprocess.Popen(command, env=environment, stderr=errors))
    try:
        statuses = _statuses(ranks)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    said = "\n".join((folder / f"rank{r}.err").read_text() for r in range(count))
    assert statuses == [0] * count, said


def _statuses(ranks: Sequence[subprocess.Popen[bytes]]) -> list[int | None]:
    """How the ranks ended. One that fails leaves the others waiting for it: then they did not."""
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        statuses = [rank.poll() for rank in ranks]
        ended = [status for status in statuses if status is not None]
        if any(ended) or len(ended) == len(ranks) or time.monotonic() > deadline:
            return statuses
        time.sleep(_POLL_S)
