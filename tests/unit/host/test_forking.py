"""What others see of a process that was forked into a rank."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from scalewise.gpu.top import identify
from scalewise.host import worker_command

_RANK = """
import sys
from scalewise.host import rename, worker_command
rename("rank 1", worker_command(sys.stdin.readline().strip()))
print("renamed", flush=True)
sys.stdin.read()
"""


def shown(folder: str, padding: int) -> tuple[str, int | None, str | None]:
    with subprocess.Popen(
        [sys.executable, "-c", _RANK, "-" * padding], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if name != "RANK"},
    ) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(folder.encode() + b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"renamed\n"
        owner = identify(process.pid)
        command = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        process.communicate()
    if padding:
        assert command.rstrip(b"\0").decode() == " ".join(worker_command(folder))
    return owner.name, owner.rank, owner.cell


def test_a_renamed_process_appears_as_the_rank_that_it_is() -> None:
    assert shown("/my sweeps/medium-ddp-r0", 1000) == ("rank 1", 1, "medium-ddp-r0")


def test_a_command_too_long_for_its_place_is_left_out_and_nothing_else_is_overwritten() -> None:
    assert shown("/" + "long" * 300, 0) == ("rank 1", 1, None)
