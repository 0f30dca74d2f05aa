"""``scalewise``: everything that is not ``train.py``, one subcommand each."""

from __future__ import annotations

import argparse
import errno
import importlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scalewise.analysis import FACTORS, compare, load_sweep
from scalewise.cli import hydra_main
from scalewise.cli.hydra_main import EXIT_INVALID
from scalewise.cli.overrides import FILE, save
from scalewise.config import EXIT_CONFIG_ERROR, ConfigError
from scalewise.doctor import Plan, examine, find_devices, leased
from scalewise.gpu import HostMismatch, export_folder, import_seed_file
from scalewise.host import (
    EXIT_NOT_SHOWN,
    EXIT_UNREAD,
    discard,
    is_unread,
    open_closed_streams,
    open_console,
    say,
    silence_unread,
)
from scalewise.records import (
    SCHEMA_VERSION,
    CellFolder,
    DoctorReport,
    RecordError,
    SweepFolder,
    save_doctor,
    to_plain,
)
from scalewise.report import comparison_text
from scalewise.tracking import main as mirror_main

if TYPE_CHECKING:
    from scalewise.analysis import Analysis


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
        "cli.application",
        "one cell or, with -m, a sweep: what train.py does, from anywhere",
        "run_training",
    ),
    "report": Command(
        "cli.application",
        "the report of a sweep: table, Markdown, plots, JSON, CSV",
        "write_report",
    ),
    "status": Command(
        "sweep.status_view", "where a sweep stands, and when it will have ended", "show_status"
    ),
    "compare": Command(
        "cli.application",
        "sweep B against A; a gate for CI: --factor code --fail-if slower=3%",
        "compare_sweeps",
    ),
    "top": Command("gpu.top", "all GPUs of this host, live"),
    "doctor": Command(
        "cli.application",
        "topology, links, collectives, GEMM and copy rates of this host",
        "run_doctor",
    ),
    "find-batch": Command(
        "sweep.launcher",
        "the largest batch that fits, the same on every device",
        "find_batch",
    ),
    "defconfig": Command(
        "cli.application",
        "save an experiment as the default of the runs to come",
        "save_default",
    ),
    "tokenize": Command(
        "datasets.tokenize", "text of the Hugging Face hub or of files into token shards"
    ),
    "mirror": Command(
        "cli.application",
        "hand a sweep's records to the trackers, whatever they lack",
        "mirror_records",
    ),
    "trackio-view": Command("tracking.view", "start Trackio's dashboard", "main_view"),
    "wandb-sync": Command(
        "tracking.view", "upload WandB runs that were recorded offline", "main_sync"
    ),
    "import": Command(
        "cli.application",
        "read a GPU log in the single- or multi-GPU JSON format",
        "import_log",
    ),
    "export": Command(
        "cli.application",
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
        from scalewise.records import closest

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


# Subcommands of ``scalewise`` that are no more than options and a call of another room.
#
# Those with more to them lie beside what they do: ``sweep.status_view``, ``measure.doctor``,
# ``gpu.top`` and their like.


def refuse(command: str, problem: object) -> int:
    """Say what is wrong with what was typed, in one line, and return the exit status for it."""
    say(f"scalewise {command}: {problem}")
    return EXIT_CONFIG_ERROR


# ``scalewise compare``: sweep B against sweep A, and a gate for CI.


def compare_sweeps(argv: Sequence[str]) -> int:
    """Print the comparison; exit status 1 where ``--fail-if`` holds or cannot be judged."""
    options = _compare_options(argv)
    try:
        found = compare(
            load_sweep(options.a), load_sweep(options.b), options.factor, options.fail_if
        )
    except (RecordError, ValueError) as error:
        return refuse("compare", error)
    if found.gate is None or not found.gate.failed:
        sys.stdout.write(comparison_text(found))
        return 0
    _print_before_gate(comparison_text(found))
    say(f"scalewise compare: {found.gate.reason}")
    return 1


def _compare_options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scalewise compare",
        description="Compare sweep B with sweep A, which may differ in one declared factor only. "
        "Exit status: 0, or 1 if --fail-if holds or nothing could be compared under it.",
        epilog="Example: scalewise compare A B --factor code --fail-if slower=3%",
    )
    parser.add_argument("a", type=Path, help="the folder of the sweep to compare with")
    parser.add_argument("b", type=Path, help="the folder of the newer sweep")
    parser.add_argument("--factor", required=True, choices=FACTORS, help="what may differ")
    parser.add_argument("--fail-if", metavar="slower=PERCENT%", help="e.g. slower=3%%")
    return parser.parse_args(argv)


def _print_before_gate(text: str) -> None:
    """Print what a failed gate rests on. That nobody gets it is said, and changes no status: what
    was asked for is the gate's."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        discard(1)
        say(f"scalewise compare: standard output: {error.strerror}")


# ``scalewise defconfig``: an experiment as the default of the runs to come.


def save_default(argv: Sequence[str]) -> int:
    """Write the file of this folder, and print what it holds."""
    parser = argparse.ArgumentParser(
        prog="scalewise defconfig",
        description="Save an experiment as the default of the runs in this folder.",
    )
    parser.add_argument("name", help="an experiment, with dashes or underscores; none removes it")
    parser.add_argument("--trackers", help="trackio, wandb, both with a comma between, or none")
    given = parser.parse_args(argv)
    try:
        lines = save(given.name, given.trackers.split(",") if given.trackers else ())
    except ConfigError as error:
        return refuse("defconfig", error)
    sys.stdout.write(f"{FILE}: {' '.join(lines) or 'removed'}\n")
    return 0


# ``scalewise import`` and ``scalewise export``: device series from and to GPU logs.


def import_log(argv: Sequence[str]) -> int:
    """Read a log into the records of a cell, and print where they lie."""
    parser = argparse.ArgumentParser(
        prog="scalewise import",
        description="Read a GPU log (single- or multi-GPU JSON) into the records of a cell.",
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("cell", type=Path, help="the folder of the cell that gets the series")
    given = parser.parse_args(argv)
    try:
        path = import_seed_file(given.file, CellFolder(given.cell))
    except OSError as error:
        return refuse("import", _takes_nothing("cell", given.cell, error))
    except (RecordError, ValueError) as error:
        return refuse("import", error)
    sys.stdout.write(f"{path}\n")
    return 0


def export_logs(argv: Sequence[str]) -> int:
    """Write the series of a cell or a sweep, and print the files."""
    parser = argparse.ArgumentParser(
        prog="scalewise export",
        description="Write device series as gpu_stats_*.json and gpu_timeline.csv.",
    )
    parser.add_argument("folder", type=Path, help="the folder of a cell or of a sweep")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="write them there, a folder a cell of a sweep (default: into each cell)",
    )
    given = parser.parse_args(argv)
    try:
        exported = export_folder(given.folder, given.out)
    except OSError as error:
        target = given.folder if given.out is None else given.out
        return refuse("export", _takes_nothing("--out", target, error))
    except RecordError as error:
        return refuse("export", error)
    sys.stdout.writelines(f"{path}\n" for path in exported.written)
    for problem in exported.problems:
        say(f"scalewise export: left out: {problem}")
    return 1 if exported.problems else 0


def _takes_nothing(argument: str, folder: Path, error: OSError) -> str:
    """That ``folder``, given as ``argument``, cannot be written into, and what may be given."""
    if folder.exists() and not folder.is_dir():
        return f"{argument}: found {folder}, which is no folder; allowed: a folder, there or new"
    found = f"{argument}: found {folder}, which cannot be written into: {error.strerror or error}"
    return f"{found}; give another folder"


# ``scalewise mirror``: hand a sweep's records to its trackers, after the sweep.


def mirror_records(argv: Sequence[str]) -> int:
    """Exit status 1 if something is not in the trackers afterwards."""
    parser = argparse.ArgumentParser(
        prog="scalewise mirror",
        description="Hand a sweep's records to the trackers that it asked for, whatever they lack. "
        "Exit status: 0, or 1 if something is not in them.",
    )
    parser.add_argument("folder", type=Path, help="a sweep's folder, e.g. multirun/<sweep>")
    folder = parser.parse_args(argv).folder
    if not (folder / "sweep.json").is_file():
        return refuse("mirror", f"{folder}: found no sweep.json; allowed: the folder of a sweep")
    status = mirror_main([str(folder), "--once"])
    if status == 0:
        sys.stdout.write(f"{folder}: its trackers hold everything\n")
    return status


# ``scalewise report``: the tables and verdicts of a sweep, and its report written anew.


def write_report(argv: Sequence[str]) -> int:
    """Write and print; exit status 2 for a folder without a sweep or that takes no report, 4 where
    a verdict is invalid."""
    given = _report_options(argv)
    folder: Path = given.folder
    # What draws takes a second to load: not for --help.
    from scalewise.analysis import SamplesError, analyse, load_sweep, read_samples
    from scalewise.report import ReportFolderError, build, print_console

    try:
        samples = None if given.samples is None else read_samples(given.samples)
        analysis = analyse(load_sweep(folder))
        files = build(analysis, given.out, samples)
    except (RecordError, ReportFolderError, SamplesError) as error:
        return refuse("report", error)
    except OSError as error:
        target = given.out or SweepFolder(folder).report_path
        problem = f"cannot write into {target}: {error.strerror}"
        return refuse("report", f"{problem}; give another folder: --out FOLDER")
    print_console(analysis, open_console(), samples)
    done = "written over the earlier one" if files.replaced else "written"
    sys.stdout.write(f"report: {files.markdown}, {done} with {len(files.plots)} plots beside it\n")
    for problem in files.problems:
        say(f"warning: {problem}")
    status = _study(analysis, given) if given.study else 0
    return status or (EXIT_INVALID if files.invalid else 0)


def _report_options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scalewise report",
        description="Print the tables and verdicts of a sweep, and write its report anew from its "
        "records: Markdown, plots, JSON and CSV in FOLDER/report, over what is there, or in --out. "
        "No record is changed.",
    )
    parser.add_argument("folder", type=Path, help="a sweep's folder, e.g. multirun/<sweep>")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="write the report there, and nothing into the sweep's folder",
    )
    parser.add_argument(
        "--samples", metavar="N", help="also the time and cost of training on N samples, e.g. 1e9"
    )
    parser.add_argument(
        "--study", action="store_true", help="also write study/ into it: plots, CSV and LaTeX"
    )
    parser.add_argument("--warmup-epochs", type=int, default=1, help="--study: epochs left out")
    parser.add_argument("--datasets", help="--study: only these, with commas between them")
    return parser.parse_args(argv)


def _study(analysis: Analysis, given: argparse.Namespace) -> int:
    from scalewise.report import build_study

    if given.warmup_epochs < 0:
        found = f"--warmup-epochs: found {given.warmup_epochs}"
        return refuse("report", f"{found}; allowed: 0 or more")
    datasets = tuple(given.datasets.split(",")) if given.datasets else ()
    try:
        files, problems = build_study(
            analysis, given.out, warmup_epochs=given.warmup_epochs, datasets=datasets
        )
    except ValueError as error:
        return refuse("report", error)
    sys.stdout.write("".join(f"study: {file}\n" for file in files))
    for line in problems:
        say(f"warning: {line}")
    return 0


# ``scalewise train``: what ``train.py`` does, from anywhere.


def run_training(argv: Sequence[str]) -> int:
    """Run the cell or the sweep that ``argv`` asks for; exit status as :func:`entry.train`."""
    # Hydra reads sys.argv itself.
    sys.argv = ["scalewise train", *argv]
    return hydra_main.train()


EXIT_FAULT = 1


EXIT_USAGE = 2


EXIT_INTERRUPTED = 130


def run_doctor(argv: list[str]) -> int:
    """Examine this host.

    Exit status: 0 examined; 1 a fault was found, or a rank did not end well; 2 the options do not
    fit this host; 130 interrupted. Warnings do not change it.
    """
    options = _doctor_parser().parse_args(argv)
    plan = Plan(options.quick, options.soak, options.backend)
    try:
        host = find_devices(options.devices, options.gpus, options.backend)
        slots = host.slots[: options.devices or len(host.slots)]
        with leased(slots) as lease:
            report = examine(plan, slots, host.driver, lease.descriptors)
        path = save_doctor(options.out, report) if options.out is not None else None
    except (HostMismatch, OSError) as error:
        _say(f"error: {error}")
        return EXIT_USAGE
    except KeyboardInterrupt:
        _say("interrupted: nothing is recorded")
        return EXIT_INTERRUPTED
    _show_doctor(report, as_json=options.json)
    if path is not None:
        _say(f"recorded: {path}")
    failed = any(key.startswith("rank ") for key in report.missing)
    return EXIT_FAULT if failed or any(f.severity == "fault" for f in report.findings) else 0


def _doctor_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scalewise doctor",
        description="Measure what the devices of this host can do alone and together, and name "
        "known faults. Nothing is changed on any device.",
    )
    add = parser.add_argument
    add("--json", action="store_true", help="print the whole record as JSON")
    add("--out", type=Path, metavar="FOLDER", help="write doctor.json there")
    add("--quick", action="store_true", help="fewer sizes and repetitions")
    add(
        "--soak",
        type=_seconds,
        default=0.0,
        metavar="S",
        help="then multiply for S seconds and watch clocks and temperature",
    )
    add("--devices", type=_count, metavar="N", help="the first N devices; default: all")
    add("--gpus", type=_gpus, metavar="LIST", help="these GPUs, by index or UUID: 2,3")
    add(
        "--backend",
        choices=("auto", "nccl", "gloo"),
        default="auto",
        help="what the ranks talk with; auto: NCCL and gloo on GPUs, gloo on CPUs",
    )
    return parser


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds <= 86_400:
        raise argparse.ArgumentTypeError(f"found {text}; allowed: 0 to 86400 seconds")
    return seconds


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"found {text}; allowed: 1 or more")
    return count


def _gpus(text: str) -> tuple[int | str, ...]:
    names = [name.strip() for name in text.strip("[]").split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"found {text!r}; allowed: a list like 0,1 or UUIDs")
    return tuple(int(name) if name.isdecimal() else name for name in names)


def _show_doctor(report: DoctorReport, *, as_json: bool) -> None:
    if as_json:
        plain = {"schema_version": SCHEMA_VERSION, **to_plain(report)}
        sys.stdout.write(json.dumps(plain, indent=2, allow_nan=False) + "\n")
        return
    from scalewise.host import open_console
    from scalewise.report import show_doctor

    show_doctor(report, open_console())
    sys.stdout.flush()


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
