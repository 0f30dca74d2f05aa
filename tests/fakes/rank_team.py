"""Ranks without a sweep around them: one module, run by several processes over gloo's variables.

    python -m fakes.rank_team MODULE FOLDER COUNT

They are forked from a process that has imported what training needs: that takes seconds, once.
"""

import importlib
import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path

from scalewise.host import die_with_parent, fork_hindrance, free_port
from scalewise.train import import_training

_TIMEOUT_S = 300


def run_ranks(module: str, folder: Path, count: int) -> None:
    """Run ``module.main(folder, rank)`` as ``count`` ranks of one process group.

    Raises AssertionError with what the ranks wrote to stderr if one of them fails or none ends.
    """
    environment = {
        **os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
        "NODE_RANK": "0", "WORLD_SIZE": str(count), "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path]),
    }  # fmt: skip
    command = [sys.executable, "-W", "error", "-m", "fakes.rank_team", module, str(folder)]
    done = subprocess.run(
        [*command, str(count)], env=environment, stderr=subprocess.PIPE, text=True,
        timeout=_TIMEOUT_S, check=False,
    )  # fmt: skip
    said = [path.read_text() for path in sorted(folder.glob("rank*.err"))]
    assert done.returncode == 0, "\n".join([done.stderr, *said])


def main(module: str, folder: str, count: int) -> int:
    """0 if all ranks succeed. One that fails leaves the others waiting for it: they are ended."""
    import_training(lean=True)
    importlib.import_module("fakes.requests")  # Hydra, which some of them compose with
    assert fork_hindrance(os.environ) is None
    ranks = {_start(module, folder, rank, os.getpid()) for rank in range(count)}
    while ranks:
        pid, status = os.wait()
        ranks.remove(pid)
        if status != 0:
            for other in ranks:
                os.kill(other, signal.SIGKILL)
            return 1
    return 0


def _start(module: str, folder: str, rank: int, team: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        die_with_parent(team)
        os.dup2(os.open(Path(folder) / f"rank{rank}.err", os.O_WRONLY | os.O_CREAT), 2)
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        importlib.import_module(module).main(Path(folder), rank)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
