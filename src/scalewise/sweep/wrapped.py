"""Starts the command around a rank so that it ends with its supervisor.

    python -m scalewise.sweep.wrapped COMMAND...

A profiler does not ask the kernel to be ended with its parent; what is asked for here outlives the
``exec`` that turns this process into the profiler.
"""

from __future__ import annotations

import os
import sys

from scalewise.lifetime import die_with_parent


def main() -> int:
    """Become the command. Returns 127, as a shell would, where it cannot be run."""
    command = sys.argv[1:]
    die_with_parent(int(os.environ["SCALEWISE_SUPERVISOR_PID"]))
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"hydra.launcher.wrap: {command[0]}: {error.strerror}\n")
        return 127


if __name__ == "__main__":
    sys.exit(main())
