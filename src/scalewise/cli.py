"""``scalewise``: everything that is not ``train.py``, one subcommand each."""

from __future__ import annotations

import errno
import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scalewise.streams import (
    EXIT_NOT_SHOWN,
    EXIT_UNREAD,
    discard,
    is_unread,
    open_closed_streams,
    say,
    silence_unread,
)


@dataclass(frozen=True)
class Command:
    """A subcommand, which is loaded when it is asked for: most need what others do without."""

    module: str
    """Below ``scalewise``."""
    text: str
    """What ``scalewise --help`` says of it."""
    function: str = "main"
    """Takes the words after the command's name, and returns the exit status."""

    def load(self) -> Callable[[list[str]], int]:
        found: Callable[[list[str]], int] = getattr(
            importlib.import_module(f"scalewise.{self.module}"), self.function
        )
        return found


COMMANDS = {
    "train": Command(
        "commands.train",
        "one cell or, with -m, a sweep: what train.py does, from anywhere",
        "run_training",
    ),
    "report": Command(
        "commands.report",
        "the report of a sweep: table, Markdown, plots, JSON, CSV",
        "write_report",
    ),
    "status": Command(
        "sweep.status_view", "where a sweep stands, and when it will have ended", "show_status"
    ),
    "compare": Command(
        "commands.compare",
        "sweep B against A; a gate for CI: --factor code --fail-if slower=3%",
        "compare_sweeps",
    ),
    "top": Command("gpu.top", "all GPUs of this host, live"),
    "doctor": Command(
        "measure.doctor",
        "topology, links, collectives, GEMM and copy rates of this host",
        "run_doctor",
    ),
    "find-batch": Command(
        "sweep.find_batch",
        "the largest batch that fits, the same on every device",
        "find_batch",
    ),
    "defconfig": Command(
        "commands.defconfig",
        "save an experiment as the default of the runs to come",
        "save_default",
    ),
    "tokenize": Command(
        "datasets.tokenize", "text of the Hugging Face hub or of files into token shards"
    ),
    "mirror": Command(
        "commands.mirror",
        "hand a sweep's records to the trackers, whatever they lack",
        "mirror_records",
    ),
    "trackio-view": Command("tracking.view", "start Trackio's dashboard", "main_view"),
    "wandb-sync": Command(
        "tracking.view", "upload WandB runs that were recorded offline", "main_sync"
    ),
    "import": Command(
        "commands.gpu_logs",
        "read a GPU log in the single- or multi-GPU JSON format",
        "import_log",
    ),
    "export": Command(
        "commands.gpu_logs",
        "write the device series of a cell or a sweep in those formats",
        "export_logs",
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand and return its exit status: 2 for wrong use, 74 for a full disk."""
    words = list(sys.argv[1:] if argv is None else argv)
    open_closed_streams()
    try:
        status = _run(words)
        sys.stdout.flush()
        return status
    except (OSError, SystemExit) as error:
        if is_unread(error):
            # `| head -1` has read enough: as quiet, and with the status, as of other programs.
            silence_unread()
            return EXIT_UNREAD
        if isinstance(error, SystemExit) or error.errno != errno.ENOSPC:
            raise
        discard(1)
        say(f"{' '.join(['scalewise', *words[:1]])}: {error.strerror}")
        return EXIT_NOT_SHOWN


def _run(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        sys.stdout.write(_usage())
        return 0 if words else 2
    if words[0] == "--version":
        import scalewise

        sys.stdout.write(f"scalewise {scalewise.__version__}\n")
        return 0
    name, rest = words[0], words[1:]
    if name not in COMMANDS:
        from scalewise.validation import closest

        sys.stderr.write(
            f"scalewise: found {name!r}{closest(name, list(COMMANDS))}; "
            f"allowed: {', '.join(COMMANDS)}\n"
        )
        return 2
    return COMMANDS[name].load()(rest)


def _usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {command.text}" for name, command in COMMANDS.items()]
    return "usage: scalewise COMMAND ...\n\n" + "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
