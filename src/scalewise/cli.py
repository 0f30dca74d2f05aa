"""``scalewise``: everything that is not ``train.py``, one subcommand each."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from scalewise.printing import (
    EXIT_NOT_SHOWN,
    NotShownError,
    discard_output,
    prepare_streams,
    run_and_flush,
)
from scalewise.streams import say

Command = Callable[[list[str]], int]
_READER_IS_GONE = 128 + signal.SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand and return its exit status: 2 for wrong use, 74 for a full disk."""
    words = list(sys.argv[1:] if argv is None else argv)
    prepare_streams()
    try:
        return run_and_flush(lambda: _run(words))
    except BrokenPipeError:
        # `| head -1` has read enough: as quiet, and with the status, as of other programs.
        discard_output()
        return _READER_IS_GONE
    except NotShownError as error:
        discard_output()
        say(f"{' '.join(['scalewise', *words[:1]])}: {error}")
        return EXIT_NOT_SHOWN
    except SystemExit as error:
        # Rich's consoles turn it into an exit of their own.
        if isinstance(error.__context__, BrokenPipeError):
            return _READER_IS_GONE
        raise


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
        from scalewise.typed import closest

        sys.stderr.write(
            f"scalewise: found {name!r}{closest(name, list(COMMANDS))}; "
            f"allowed: {', '.join(COMMANDS)}\n"
        )
        return 2
    return COMMANDS[name][0](rest)


def _usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {text}" for name, (_, text) in COMMANDS.items()]
    return "usage: scalewise COMMAND ...\n\n" + "\n".join(lines) + "\n"


def _train(argv: list[str]) -> int:
    from scalewise.entry import train

    # Hydra reads sys.argv itself.
    sys.argv = ["scalewise train", *argv]
    return train()


def _report(argv: list[str]) -> int:
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
        "--study", action="store_true", help="also write study/ into it: plots, CSV and LaTeX"
    )
    parser.add_argument("--warmup-epochs", type=int, default=1, help="--study: epochs left out")
    parser.add_argument("--datasets", help="--study: only these, with commas between them")
    given = parser.parse_args(argv)
    folder = given.folder
    from scalewise.records import RecordError, SweepFolder
    from scalewise.report import ReportFolderError, build, print_console
    from scalewise.terminal import open_console

    try:
        files = build(folder, given.out)
    except (RecordError, ReportFolderError) as error:
        sys.stderr.write(f"scalewise report: {error}\n")
        return 2
    except OSError as error:
        target = given.out or SweepFolder(folder).report_path
        sys.stderr.write(
            f"scalewise report: cannot write into {target}: {error.strerror}; give another "
            "folder: --out FOLDER\n"
        )
        return 2
    print_console(folder, open_console())
    done = "written over the earlier one" if files.replaced else "written"
    sys.stdout.write(f"report: {files.markdown}, {done} with {len(files.plots)} plots beside it\n")
    return _study(folder, given) if given.study else 0


def _study(folder: Path, given: argparse.Namespace) -> int:
    from scalewise.report import study

    if given.warmup_epochs < 0:
        sys.stderr.write(
            f"scalewise report: --warmup-epochs: found {given.warmup_epochs}; allowed: 0 or more\n"
        )
        return 2
    datasets = tuple(given.datasets.split(",")) if given.datasets else ()
    try:
        files = study.build(folder, study.Selection(given.warmup_epochs, datasets), given.out)
    except ValueError as error:
        sys.stderr.write(f"scalewise report: {error}\n")
        return 2
    sys.stdout.write("".join(f"study: {file}\n" for file in files))
    return 0


def _status(argv: list[str]) -> int:
    from scalewise.sweep import status_view

    return status_view.main(argv)


def _compare(argv: list[str]) -> int:
    from scalewise.analysis.identity import FACTORS

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
    options = parser.parse_args(argv)
    from scalewise.analysis.compare import compare
    from scalewise.analysis.load import load_sweep
    from scalewise.records import RecordError
    from scalewise.report.comparison import as_text

    try:
        found = compare(
            load_sweep(options.a), load_sweep(options.b), options.factor, options.fail_if
        )
    except (RecordError, ValueError) as error:
        sys.stderr.write(f"scalewise compare: {error}\n")
        return 2
    if found.gate is None or not found.gate.failed:
        sys.stdout.write(as_text(found))
        return 0
    _print_before_gate(as_text(found))
    say(f"scalewise compare: {found.gate.reason}")
    return 1


def _print_before_gate(text: str) -> None:
    """Print what a failed gate rests on. That nobody gets it is said, and changes no status: what
    was asked for is the gate's."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()
    except NotShownError as error:
        discard_output()
        say(f"scalewise compare: {error}")


def _top(argv: list[str]) -> int:
    from scalewise.gpu import top

    return top.main(argv)


def _doctor(argv: list[str]) -> int:
    from scalewise.measure import doctor

    return doctor.main(argv)


def _import(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="scalewise import",
        description="Read a GPU log (single- or multi-GPU JSON) into the records of a cell.",
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("cell", type=Path, help="the folder of the cell that gets the series")
    arguments = parser.parse_args(argv)
    from scalewise.gpu.seed_format import import_seed_file
    from scalewise.records import CellFolder, RecordError

    try:
        path = import_seed_file(arguments.file, CellFolder(arguments.cell))
    except (OSError, RecordError, ValueError) as error:
        sys.stderr.write(f"scalewise import: {error}\n")
        return 2
    sys.stdout.write(f"{path}\n")
    return 0


def _export(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="scalewise export",
        description="Write device series as gpu_stats_*.json and gpu_timeline.csv.",
    )
    parser.add_argument("folder", type=Path, help="the folder of a cell or of a sweep")
    parser.add_argument("--to", type=Path, default=None, help="where to (default: each cell)")
    arguments = parser.parse_args(argv)
    from scalewise.gpu.export import export_folder
    from scalewise.records import RecordError

    try:
        written = export_folder(arguments.folder, arguments.to)
    except (OSError, RecordError) as error:
        sys.stderr.write(f"scalewise export: {error}\n")
        return 2
    sys.stdout.writelines(f"{path}\n" for path in written)
    return 0


def _mirror(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="scalewise mirror",
        description="Hand a sweep's records to the trackers that it asked for, whatever they lack. "
        "Exit status: 0, or 1 if something is not in them.",
    )
    parser.add_argument("folder", type=Path, help="a sweep's folder, e.g. multirun/<sweep>")
    folder = parser.parse_args(argv).folder
    if not (folder / "sweep.json").is_file():
        sys.stderr.write(
            f"scalewise mirror: {folder}: found no sweep.json; allowed: the folder of a sweep\n"
        )
        return 2
    from scalewise.tracking import mirror

    status = mirror.main([str(folder), "--once"])
    if status == 0:
        sys.stdout.write(f"{folder}: its trackers hold everything\n")
    return status


def _view(argv: list[str]) -> int:
    from scalewise.tracking import view

    return view.main_view(argv)


def _sync(argv: list[str]) -> int:
    from scalewise.tracking import view

    return view.main_sync(argv)


def _find_batch(argv: list[str]) -> int:
    from scalewise.sweep import find_batch

    return find_batch.main(argv)


def _defconfig(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="scalewise defconfig",
        description="Save an experiment as the default of the runs in this folder.",
    )
    parser.add_argument("name", help="an experiment, with dashes or underscores; none removes it")
    parser.add_argument("--trackers", help="trackio, wandb, both with a comma between, or none")
    given = parser.parse_args(argv)
    from scalewise.defaults import FILE, save
    from scalewise.errors import ConfigError

    try:
        lines = save(given.name, given.trackers.split(",") if given.trackers else ())
    except ConfigError as error:
        sys.stderr.write(f"scalewise defconfig: {error}\n")
        return 2
    sys.stdout.write(f"{FILE}: {' '.join(lines) or 'removed'}\n")
    return 0


def _tokenize(argv: list[str]) -> int:
    from scalewise.datasets import tokenize

    return tokenize.main(argv)


COMMANDS: dict[str, tuple[Command, str]] = {
    "train": (_train, "one cell or, with -m, a sweep: what train.py does, from anywhere"),
    "report": (_report, "the report of a sweep: table, Markdown, plots, JSON, CSV"),
    "status": (_status, "where a sweep stands, and when it will have ended"),
    "compare": (_compare, "sweep B against A; a gate for CI: --factor code --fail-if slower=3%"),
    "top": (_top, "all GPUs of this host, live"),
    "doctor": (_doctor, "topology, links, collectives, GEMM and copy rates of this host"),
    "find-batch": (_find_batch, "the largest batch that fits, the same on every device"),
    "defconfig": (_defconfig, "save an experiment as the default of the runs to come"),
    "tokenize": (_tokenize, "text of the Hugging Face hub or of files into token shards"),
    "mirror": (_mirror, "hand a sweep's records to the trackers, whatever they lack"),
    "trackio-view": (_view, "start Trackio's dashboard"),
    "wandb-sync": (_sync, "upload WandB runs that were recorded offline"),
    "import": (_import, "read a GPU log in the single- or multi-GPU JSON format"),
    "export": (_export, "write the device series of a cell or a sweep in those formats"),
}


if __name__ == "__main__":
    sys.exit(main())
