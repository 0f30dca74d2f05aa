"""The Ray actor on each host of a cell: starts ``host_agent`` there and holds its liveness pipe.

Ray ends an actor with the sweep that made it and with its node; the agent then sees its standard
input close and ends the cell. Where the host does not share the sweep's folder, the cell is
trained in a scratch folder, and what it records is sent back while it runs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from scalewise.sweep.folder_sync import Change, FolderWatch, unpack
from scalewise.sweep.order import Order, to_line

_NOT_INHERITED = ("RAY_", "OMP_NUM_THREADS", "PYTHONBREAKPOINT")
"""What Ray sets for its workers and a cell is not to see."""


@dataclass(frozen=True)
class Answer:
    """How the agent ended."""

    output: bytes
    status: int
    errors: str
    """The end of what it wrote to its standard error."""


class HostActor:
    """One host's part of one cell."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._watch: FolderWatch | None = None
        self._scratch: Path | None = None
        self._lock = threading.Lock()

    def address(self) -> str:
        """Where other nodes reach this one."""
        import ray

        return str(ray.util.get_node_ip_address())

    def run(self, order: Order, token: str, files: Mapping[str, bytes]) -> Answer:
        """Train; ``files`` is the cell's folder, used where ``token`` cannot be seen."""
        if not Path(token).exists():
            if order.wanted.nodes > 1:
                said = "a cell on several nodes needs a folder that all of them share"
                return Answer(b"", 1, f"{said}; this one does not see {Path(token).parent}")
            order = self._in_scratch(order, files)
        path = os.pathsep.join((*order.origin.python_path, *(p for p in sys.path if p)))
        kept = {k: v for k, v in os.environ.items() if not k.startswith(_NOT_INHERITED)}
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "scalewise.sweep.host_agent", "run"],
                env={**kept, "PYTHONPATH": path},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
            assert process.stdin is not None and process.stdout is not None
            with self._lock, contextlib.suppress(BrokenPipeError):
                process.stdin.write(to_line(order))
                process.stdin.flush()
                self._process = process
            output = process.stdout.read()
            process.stdout.close()
            status = process.wait()
            self.stop()
            errors.seek(0)
            return Answer(output, status, errors.read().decode(errors="replace")[-2000:])

    def _in_scratch(self, order: Order, files: Mapping[str, bytes]) -> Order:
        scratch = Path(tempfile.mkdtemp(prefix="scalewise-cell-"))
        folder = scratch / Path(order.folder).name
        unpack(folder, files)
        self._scratch = scratch
        self._watch = FolderWatch(folder, files)
        cwd = order.origin.cwd if Path(order.origin.cwd).is_dir() else str(scratch)
        return replace(order, folder=str(folder), origin=replace(order.origin, cwd=cwd))

    def changes(self) -> list[Change]:
        """What the cell has recorded since the last call; nothing where the folder is shared."""
        with self._lock:
            return [] if self._watch is None else self._watch.changes()

    def tell(self, line: str) -> None:
        with self._lock, contextlib.suppress(BrokenPipeError, ValueError):
            if self._process is not None and self._process.stdin is not None:
                self._process.stdin.write(f"{line}\n".encode())
                self._process.stdin.flush()

    def stop(self) -> None:
        """Have the agent end and record its part."""
        with self._lock, contextlib.suppress(BrokenPipeError):
            if self._process is not None and self._process.stdin is not None:
                self._process.stdin.close()

    def clear(self) -> None:
        """Remove what lies on this host alone."""
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
