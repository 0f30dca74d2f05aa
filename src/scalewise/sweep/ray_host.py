"""The Ray actor on each host of a cell: starts ``host_agent`` there and holds its liveness pipe.

Ray ends an actor with the sweep that made it and with its node; the agent then sees its standard
input close and ends the cell.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass

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
        self._lock = threading.Lock()

    def address(self) -> str:
        """Where other nodes reach this one."""
        import ray

        return str(ray.util.get_node_ip_address())

    def run(self, order: Order) -> Answer:
        """Train this node's part of a cell."""
        path = os.pathsep.join((*order.origin.python_path, *(p for p in sys.path if p)))
        kept = {k: v for k, v in os.environ.items() if not k.startswith(_NOT_INHERITED)}
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "scalewise.sweep.host_agent"],
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
