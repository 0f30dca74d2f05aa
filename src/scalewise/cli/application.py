"""The ``scalewise`` command: one click application, whose commands import what they need."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import shell_complete

from scalewise.cli.exits import WRONG_INPUT, Exit
from scalewise.host import (
    discard,
    escaped,
    foreign_launch,
    is_unread,
    open_console,
    say,
    silence_unread,
    tell,
)
from scalewise.records import closest, words_beside

if TYPE_CHECKING:
    from scalewise.analysis import Analysis

FOLDER = click.Path(path_type=Path)

_COMPLETE = "_SCALEWISE_COMPLETE"
"""By which shells ask for completions."""


def main(words: Sequence[str] | None = None) -> int:
    """Run the command that ``words`` name, of ``sys.argv`` without; returns the exit status."""
    words = list(sys.argv[1:] if words is None else words)
    try:
        status = _run(words or ["--help"])
        sys.stdout.flush()
        return status if words else Exit.WRONG_INPUT
    except click.ClickException as error:
        said = " ".join(error.format_message().split())
        if isinstance(error, click.MissingParameter) and error.ctx is not None:
            said = f"{said.rstrip('.')}; {error.ctx.command_path} --help says more"
        say(f"error: {escaped(said)}")
        return error.exit_code
    except WRONG_INPUT as error:
        say(f"error: {escaped(str(error))}")
        return Exit.WRONG_INPUT
    except KeyboardInterrupt:
        say("interrupted")
        return Exit.INTERRUPTED
    except OSError as error:
        if is_unread(error):
            # `| head -1` has read enough: as quiet, and with the status, as of other programs.
            silence_unread()
            return Exit.UNREAD
        if error.filename:
            say(f"error: {escaped(str(error.filename))}: {error.strerror}; allowed: another place")
            return Exit.WRONG_INPUT
        if error.errno != errno.ENOSPC:
            raise
        discard(1)
        say(f"error: {error.strerror}")
        return Exit.NOT_SHOWN


def _run(words: list[str]) -> int:
    if asked := os.environ.get(_COMPLETE):
        return shell_complete(application, {}, "scalewise", _COMPLETE, asked)
    if words[0] == "-sc" and (line := os.environ.get("COMP_LINE")):
        # Hydra's completion, which `train --hydra-help` installs, takes one word for the program.
        os.environ["COMP_LINE"] = rest = line.partition(" ")[2]
        if not rest.startswith("train "):
            return Exit.DONE
        words = ["train", *words]
    try:
        with application.make_context("scalewise", words) as context:
            return application.invoke(context) or Exit.DONE
    except click.exceptions.Exit as ended:  # --help and --version
        return ended.exit_code


_JOBS = words_beside(__file__, dict[str, tuple[str, ...]])
"""What ``--help`` lists."""


class Commands(click.Group):
    """Names the command that was probably meant."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.commands:
            near = closest(args[0], list(self.commands))
            ctx.fail(f"found {args[0]!r}{near}; allowed: {', '.join(self.commands)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        longest = max(map(len, self.commands))
        for job, names in _JOBS.items():
            with formatter.section(job):
                formatter.write_dl(
                    [(n.ljust(longest), self.commands[n].get_short_help_str(60)) for n in names]
                )


class HandedOn(click.Command):
    """A command that gets its words as they are."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.args = list(args)
        return []


DAY_S = 86_400.0


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="scalewise COMMAND --help has its options.",
)
@click.version_option(package_name="scalewise", message="%(prog)s %(version)s")
def application() -> None:
    """Do more GPUs pay here, why not, and what to do instead?"""


@application.command(cls=HandedOn)
@click.pass_context
def train(context: click.Context) -> int:
    """One cell or, with -m, a sweep: what train.py does."""
    # Hydra reads sys.argv itself.
    sys.argv = ["scalewise train", *context.args]
    return run_training()


# What follows the command's first word is the script's, a --devices of its own too.
@application.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--devices", metavar="LIST", help="Numbers of devices.  [default: 1,2; beside --rehearse 1]"
)
@click.option("--rehearse", metavar="LIST", help="Rehearse numbers that this host lacks, as 2,4,8.")
@click.option("--link", metavar="LINK", help="Over which link (docs/rehearsal.md), or doctor.json.")
@click.option("--time", "time_s", metavar="S", help="Timed seconds of a run, as 30s.")
@click.option("--repeats", metavar="N", help="Runs of each.  [default: auto: until decided]")
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of a sweep's."
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(
    devices: str | None, rehearse: str | None, link: str | None, time_s: str | None,
    repeats: str | None, settings: tuple[str, ...], command: tuple[str, ...],
) -> int:  # fmt: skip
    """Any PyTorch script, unchanged, on each number of devices.

    COMMAND follows -- and is that of one device. {run} in it is a name of each run's. A run
    ends when --time is timed, or by itself. Every --set is a setting of docs/sweeps.md.

    \b
    Example: scalewise run --devices 1,2 -- python train.py --lr 3e-4 --out runs/{run}
    """
    from scalewise.cli import hydra_main
    from scalewise.cli.overrides import words_of

    words = words_of(command, devices, time_s, repeats, settings, rehearse, link)
    sys.argv = ["scalewise train", *words]
    return hydra_main.train(defaults=False)


def run_training(**how: bool) -> int:
    """``train.py``: says at once what happens in the seconds before the first cell starts."""
    words, launched = sys.argv[1:], foreign_launch()
    asks = any(w.startswith("-") and w not in _RUNNING for w in words)  # --help, --cfg, --dry-run
    asks = asks or "sweep.dry_run=true" in map(str.lower, words)
    if not asks and (launched is None or not launched[1]):
        say("prepare  composes and checks the cells, then imports torch")
    try:
        from scalewise.cli import hydra_main
    except KeyboardInterrupt:
        say("interrupted: nothing had begun")
        return Exit.INTERRUPTED
    return hydra_main.train(**how)


_RUNNING = ("-m", "--multirun", "-v", "--verbose")
"""Options with which cells run."""


@application.command()
@click.argument("folder", type=FOLDER)
@click.argument("overrides", nargs=-1)
@click.option("--trust", is_flag=True, help="Also a sweep that you did not make here.")
@click.option("--dry-run", is_flag=True, help="Print what would run, and run nothing.")
@click.option("-v", "--verbose", is_flag=True, help="Print every table, loss and doubt.")
def resume(
    folder: Path, overrides: tuple[str, ...], trust: bool, dry_run: bool, verbose: bool
) -> int:
    """Finish a sweep: its own command, for what it lacks.

    FOLDER is a sweep's, e.g. multirun/<sweep>. OVERRIDES are added to the command, e.g.
    sweep.extend=5 for five more repeats.
    """
    from scalewise.cli import hydra_main

    more = (*overrides, *["sweep.dry_run=true"] * dry_run)
    return hydra_main.resume(folder, more, trust=trust, verbose=verbose)


@application.command()
@click.argument("folder", type=FOLDER, required=False)
@click.option("--out", type=FOLDER, help="Write the report there, not into FOLDER/report.")
@click.option(
    "--price",
    "prices",
    multiple=True,
    metavar="KEY=N",
    help="A price of yours, e.g. purchase_usd=30000; once for each.",
)
@click.option("--study", is_flag=True, help="Also write study/ into it: plots, CSV and LaTeX.")
@click.option(
    "--warmup-epochs",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="For --study: epochs left out.",
)
@click.option("--datasets", help="For --study: only these, with commas between them.")
@click.option("-v", "--verbose", is_flag=True, help="Print every table, loss and doubt.")
@click.option("--box", "boxed", is_flag=True, help="Print 12 lines for an issue; write nothing.")
def report(
    folder: Path | None, out: Path | None, prices: tuple[str, ...], study: bool,
    warmup_epochs: int, datasets: str | None, verbose: bool, boxed: bool,
) -> int:  # fmt: skip
    """The verdicts of a sweep, and its report anew.

    FOLDER is a sweep's, or a zip of `scalewise bundle`; without it the newest in multirun/ is read.
    HTML, Markdown, plots, JSON and CSV are written over what is there, for A.zip into A/report.
    No record is changed. Exit status: 0, or 4 if a verdict is invalid.
    """
    from scalewise.report import box, build, build_study, of_datasets, print_console

    analysis = _analysed(folder, prices)
    studied = of_datasets(analysis, datasets.split(",")) if datasets else analysis
    if boxed:
        tell("\n".join(box(analysis)))
        return Exit.INVALID if analysis.invalid else Exit.DONE
    files = build(analysis, out)
    print_console(analysis, open_console(), verbose=verbose)
    tell(f"Report: {files.html}, written{' anew' if files.replaced else ''}")
    problems = list(files.problems)
    if study:
        paths, more = build_study(studied, out, warmup_epochs=warmup_epochs)
        for pair in (p for p in analysis.pairs if p.seed_label and not p.invalid):
            tell(f"study's label: {pair.multi.label}: {pair.seed_label}")
        for path in paths:
            tell(f"study: {path}")
        problems += more
    for problem in problems:
        say(f"warning: {problem}")
    _tell_how_to_finish(analysis)
    return Exit.INVALID if analysis.invalid else Exit.DONE


def _tell_how_to_finish(analysis: Analysis) -> None:
    """What failed, was interrupted or waits, unless somebody runs the sweep."""
    from scalewise.records import SweepFolder
    from scalewise.sweep import is_held, way_to_finish

    sweep = analysis.sweep
    way = way_to_finish(sweep.archive or sweep.path, (one.ending for one in sweep.cells))
    runs = any(one.state == "running" for one in sweep.cells)  # perhaps on another host
    if way and not runs and not is_held(SweepFolder(sweep.path).lock_path):
        tell(way)


def _analysed(folder: Path | None, prices: tuple[str, ...]) -> Analysis:
    from scalewise.analysis import analyse, load_sweep
    from scalewise.config import conf_dir, read_prices
    from scalewise.sweep import newest_sweep

    priced = read_prices(conf_dir() / "prices.yaml", prices)
    return analyse(load_sweep(folder or newest_sweep(Path("multirun"))), prices=priced)


@application.command()
@click.argument("given", nargs=-1, metavar="[FOLDER | OVERRIDES...]")
@click.option("--samples", metavar="N", help="Time and cost of training on N, e.g. 1e9.")
@click.option("--price", "prices", multiple=True, metavar="KEY=N", help="As of report.")
def advise(given: tuple[str, ...], samples: str | None, prices: tuple[str, ...]) -> int:
    """What to take of what a sweep measured and rehearsed.

    FOLDER is a sweep's, or its zip; without it the newest in multirun/ is read. OVERRIDES, as
    experiment=gpt2_scaling, are measured first, as train.py -m does: on one device, on all of this
    host, and rehearsed on 2, 4 and 8, unless devices= is among them. Each workload has four lines
    at most, every option, and what wins most with its command. Exit status: 0, 4 if a verdict
    is invalid, or that of measuring.
    """
    from scalewise.analysis import read_samples
    from scalewise.report import advise as sections_of
    from scalewise.report import show_comparison

    status: int = Exit.DONE
    folder = Path(given[0]) if given else None
    if folder and "=" in given[0] and not folder.exists():
        from scalewise.doctor import find_devices
        from scalewise.sweep import sweep_reports

        slots = find_devices(None, None).slots
        words = to_advise_on(given, len(slots), on_gpus=slots[0].kind != "cpu")
        sys.argv = ["scalewise train", *words]
        status = run_training(answers=False)  # what follows has the sweep's own answer too
        if status == Exit.INTERRUPTED or not any(sweep.count("done") for sweep in sweep_reports):
            return status
        folder = sweep_reports[-1].folder
    elif len(given) > 1:
        raise click.UsageError(
            f"found {len(given)} folders; allowed: one, or overrides (KEY=VALUE)"
        )
    target = None if samples is None else read_samples(samples)
    analysis = _analysed(folder, prices)
    try:
        show_comparison(sections_of(analysis, target), open_console())
    finally:
        if status == Exit.DONE:  # else what measured has said so
            _tell_how_to_finish(analysis)
    return Exit.INVALID if analysis.invalid else status


def to_advise_on(overrides: Sequence[str], devices: int, *, on_gpus: bool) -> list[str]:
    """The sweep that tells most of ``overrides``. Only GPUs are rehearsed unless that is typed."""
    asked = {key: value for key, _, value in (word.partition("=") for word in overrides)}
    link = asked.get("rehearse", "true" if on_gpus else "none")
    more = () if link == "none" else (2, 4, 8)
    numbers = sorted({1, devices, *(n for n in more if n > devices)})
    ours = {"devices": ",".join(map(str, numbers)), "rehearse": link}
    return ["-m", *(f"{k}={v}" for k, v in ours.items() if k not in asked), *overrides]


@application.command()
@click.argument("folder", type=FOLDER)
@click.option("--out", type=FOLDER, help="A new .zip; default: named as FOLDER, here.")
def bundle(folder: Path, out: Path | None) -> None:
    """A sweep as one archive, to keep or to send.

    Holds the records that `scalewise report FILE` reads: no data, checkpoints, logs or trackers'
    files. Names of hosts, users, projects and paths are in it as they were recorded, and so are
    messages and tracebacks of failed cells: look before you send it.
    """
    from scalewise.records import write_archive

    out = out or Path(f"{Path(os.path.realpath(folder)).name}.zip")  # resolve() refuses a loop
    files = write_archive(folder, out)
    tell(f"{out}: {files} files, {out.stat().st_size / 1e6:.2f} MB")


@application.command()
@click.argument("folder", type=FOLDER, required=False)
@click.option("--watch", is_flag=True, help="Again every --every seconds.")
@click.option(
    "--every", type=click.FloatRange(0.0, DAY_S), default=2.0, show_default=True, metavar="S"
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a reading.")
def status(folder: Path | None, watch: bool, every: float, as_json: bool) -> None:
    """Where a sweep stands, and when it will have ended.

    FOLDER is a sweep's; without it the newest in multirun/ is shown.
    """
    from scalewise.sweep import show_status

    show_status(folder, every if watch else None, as_json=as_json)


@application.command()
@click.argument("folders", type=FOLDER, nargs=-1, required=True)
@click.option(
    "--factor",
    help="What may differ: devices, strategy, gpu, link, code, versions, model, dataset, "
    "optimizer, callbacks, precision, execution, batch or measuring; several with commas "
    "between.",
)
@click.option("--out", type=FOLDER, help="Also write comparison.md, .json and .csv there.")
def compare(folders: tuple[Path, ...], factor: str | None, out: Path | None) -> None:
    """Sweeps side by side, or one factor's ratio.

    FOLDERS are of sweeps or their zips, A, B and so on; the first is the older one. Without
    --factor it prints what differs, their rows, a winner for each metric, and what to take or to
    run next; what --out writes always has all of that.

    \b
    Example: scalewise compare A B --factor code
    """
    from scalewise.analysis import analyse, compare, load_sweep, sides
    from scalewise.report import build_comparison, comparison_section, show_comparison, side_by_side

    if factor is not None and len(folders) != 2:
        raise click.UsageError(f"found {len(folders)} folders; allowed with --factor: two, A and B")
    sweeps = [load_sweep(folder) for folder in folders]
    try:
        first, *others = sides(len(sweeps))
        ratios = [
            compare(sweeps[0], sweep, factor, (first, letter))
            for letter, sweep in zip(others, sweeps[1:], strict=True)
        ]
        _check_each_once(folders, [sweep.home.resolve() for sweep in sweeps])
        analyses = [*map(analyse, sweeps)] if factor is None or out is not None else []
        whole = side_by_side(analyses, ratios) if analyses else []
        sections = whole if factor is None else [*map(comparison_section, ratios)]
        page = out and build_comparison(whole, analyses, ratios, out)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    show_comparison(sections, open_console())
    if page:
        tell(f"Comparison: {page}, written")


def _check_each_once(places: Sequence[Path], told_by: Sequence[object]) -> None:
    """Refuse a sweep that was named twice: it would be held against itself."""
    for i, place in enumerate(places):
        if told_by[i] in told_by[:i]:
            raise click.UsageError(f"{place.name}: found a sweep twice; allowed: each once")


@application.command()
@click.argument("folders", type=FOLDER, nargs=-1, required=True)
def score(folders: tuple[Path, ...]) -> None:
    """How far rehearsals were from what was measured.

    FOLDERS are of sweeps, or hold some, or their zips, that ran with rehearse.all=true: cells on
    one device, on several, and rehearsed.
    """
    from scalewise.analysis import analyse, cases, load_sweep
    from scalewise.records import SweepFolder, sweeps_in, unpacked
    from scalewise.report import score_sections, show_comparison

    places: list[Path] = []
    for folder in folders:
        home = unpacked(folder)
        places += [folder] if SweepFolder(home).plan_path.exists() else sweeps_in(home) or [folder]
    sweeps = [load_sweep(place) for place in places]
    _check_each_once(places, [sweep.created_at for sweep in sweeps])
    found = cases((sweep.home.name, analyse(sweep)) for sweep in sweeps)
    if not found:
        raise click.UsageError(
            "found no rehearsal beside the same on one device and on as many as it stands for; "
            "allowed: sweeps of devices=1,N rehearse=true rehearse.all=true"
        )
    show_comparison(score_sections(found), open_console())


@application.command()
@click.option(
    "--interval",
    type=click.FloatRange(0.1, DAY_S),
    default=1.0,
    metavar="S",
    help="Seconds between readings.",
)
@click.option("--once", is_flag=True, help="Print one reading and end.")
@click.option(
    "--log",
    "--stats-file",
    type=FOLDER,
    metavar="FILE",
    help="Also append one GPU to FILE and all to FILE_multi_gpu.json, as JSON arrays.",
)
@click.option("--gpu", type=int, metavar="N", help="The GPU of --log's FILE; default: the first.")
def top(interval: float, once: bool, log: Path | None, gpu: int | None) -> None:
    """All GPUs of this host, live."""
    from scalewise.gpu import NvmlUnavailable, show_gpus

    try:
        show_gpus(interval, once=once, log=log, gpu_index=gpu)
    except BrokenPipeError:
        raise  # whoever reads has seen enough
    except (NvmlUnavailable, OSError) as error:
        raise click.ClickException(str(error)) from error


def _gpus(
    _context: click.Context, _parameter: click.Parameter, text: str | None
) -> tuple[int | str, ...] | None:
    if text is None:
        return None
    names = [name.strip() for name in text.strip("[]").split(",")]
    if not all(names):
        raise click.BadParameter(f"found {text!r}; allowed: a list like 0,1 or UUIDs")
    return tuple(int(name) if name.isdecimal() else name for name in names)


@application.command()
@click.option("--json", "as_json", is_flag=True, help="Print the whole record as JSON.")
@click.option("--out", type=FOLDER, help="Write doctor.json there.")
@click.option("--quick", is_flag=True, help="Fewer sizes and repetitions.")
@click.option(
    "--soak",
    type=click.FloatRange(0.0, DAY_S),
    default=0.0,
    metavar="S",
    help="Then multiply for S seconds and watch clocks and temperature.",
)
@click.option(
    "--devices", type=click.IntRange(min=1), metavar="N", help="The first N; default: all."
)
@click.option("--gpus", callback=_gpus, metavar="LIST", help="These GPUs, by index or UUID: 2,3.")
def doctor(
    as_json: bool, out: Path | None, quick: bool, soak: float,
    devices: int | None, gpus: tuple[int | str, ...] | None,
) -> int:  # fmt: skip
    """Topology, links, collectives, GEMM and copy rates.

    Measures what the devices of this host do alone and together, and names known faults. Nothing
    is changed on any device. Exit status: 0, or 1 if a fault was found or a rank died.
    """
    from scalewise.doctor import Plan, examine, find_devices, leased
    from scalewise.gpu import HostMismatch
    from scalewise.records import SCHEMA_VERSION, save_record, to_plain

    if out is not None:
        out.mkdir(parents=True, exist_ok=True)  # what is refused is so before minutes of measuring
        if not os.access(out, os.W_OK):
            raise click.UsageError(f"{out}: found a read-only folder; allowed: another place")
    try:
        host = find_devices(devices, gpus)
        slots = host.slots[: devices or len(host.slots)]
        with leased(slots) as lease:
            found = examine(Plan(quick, soak), slots, host.driver, lease.descriptors)
        path = None if out is None else save_record(out, found)
    except (HostMismatch, OSError) as error:
        raise click.UsageError(str(error)) from error
    if as_json:
        plain = {"schema_version": SCHEMA_VERSION, **to_plain(found)}
        sys.stdout.write(json.dumps(plain, indent=2, allow_nan=False) + "\n")
    else:
        from scalewise.report import show_doctor

        show_doctor(found, open_console())
    if path is not None:
        say(f"recorded: {path}")
    faulty = any(finding.severity == "fault" for finding in found.findings)
    return Exit.FAILED if found.failed_ranks or faulty else Exit.DONE


@application.command()
@click.argument("name")
@click.option("--trackers", help="trackio, wandb, both with a comma between, or none.")
def defconfig(name: str, trackers: str | None) -> None:
    """Save an experiment as the default of the runs to come.

    NAME is an experiment, with dashes or underscores; none removes the default.
    """
    from scalewise.cli.overrides import FILE, save

    lines = save(name, trackers.split(",") if trackers else ())
    tell(f"{FILE}: {' '.join(lines) or 'removed'}")


def _token_count(
    _context: click.Context, _parameter: click.Parameter, text: str | None
) -> int | None:
    from scalewise.datasets import token_count

    try:
        return None if text is None else token_count(text)
    except ValueError:
        raise click.BadParameter(f"found {text!r}; allowed: a number such as 100M") from None


@application.command()
@click.argument("sources", nargs=-1)
@click.option("--files", is_flag=True, help="SOURCES are .parquet, .jsonl, .json or .txt files.")
@click.option("--column", default="text", help="The column of --files that holds text.")
@click.option("--out", type=FOLDER, required=True, help="The folder of the tokens.")
@click.option("--tokenizer", "tokenizer_name", default="gpt2", help="gpt2 or bytes.")
@click.option("--tokens", callback=_token_count, help="Training tokens, e.g. 100M; default: all.")
@click.option(
    "--validation-every",
    type=click.IntRange(min=2),
    default=200,
    show_default=True,
    metavar="DOCUMENTS",
)
def tokenize(sources: tuple[str, ...], files: bool, out: Path, **settings: Any) -> int:
    """Text of the Hugging Face hub or of files to tokens.

    SOURCES is a corpus of the hub (fineweb_edu, openwebtext or tinystories) or, with --files,
    files. What an error or Ctrl-C ends is not kept.
    """
    from scalewise.datasets import tokenize_text

    if not sources or (not files and len(sources) > 1):
        raise click.UsageError("give a corpus or --files, one of them")
    try:
        text = [Path(source) for source in sources] if files else sources[0]
        tokenize_text(text, out, **settings)
    except BrokenPipeError:
        raise  # whoever reads has seen enough
    except OSError as error:
        raise click.ClickException(str(error)) from error
    return Exit.DONE


@application.command()
@click.argument("folder", type=FOLDER)
def mirror(folder: Path) -> int:
    """Hand a sweep's records to its trackers, whatever they lack.

    FOLDER is a sweep's, e.g. multirun/<sweep>. Exit status: 0, or 1 if something is not in them.
    """
    from scalewise.records import SweepFolder
    from scalewise.tracking import hand_over_answer
    from scalewise.tracking import main as mirror_main

    if not (folder / "sweep.json").is_file():
        raise click.UsageError(f"{folder}: found no sweep.json; allowed: the folder of a sweep")
    missing = mirror_main([str(folder), "--once"])
    sweep = SweepFolder(folder)
    if not missing and not any(cell.load_tracking() for _, cell in sweep.cells()):
        tell(f"{folder}: no tracker was wanted (tracking=none), or no cell has begun")
        return missing
    if (sweep.report_path / "results.json").exists():
        missing = missing or int(not hand_over_answer(folder))
    if not missing:
        tell(f"{folder}: its trackers hold everything")
    return missing


@application.command()
@click.option("--project", help="Default: WANDB_PROJECT, or this folder's name.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=int, default=7860, envvar="GRADIO_SERVER_PORT", show_default=True)
@click.option("--url-only", is_flag=True, help="Print the URL, start nothing.")
def trackio_view(project: str | None, host: str, port: int, url_only: bool) -> None:
    """Start Trackio's dashboard and print its full URL.

    The URL carries the token that allows renaming and deleting runs.
    """
    from scalewise.config import default_project
    from scalewise.tracking import show_dashboard

    show_dashboard(project or default_project(), host, port, url_only=url_only)


@application.command()
@click.argument("folder", type=FOLDER)
@click.option("--out", type=FOLDER, help="Write there, a folder a cell; default: into each cell.")
def export(folder: Path, out: Path | None) -> int:
    """Device series as gpu_stats_*.json and gpu_timeline.csv.

    FOLDER is of a cell or of a sweep, or its zip; of A.zip they go to A.
    """
    from scalewise.gpu import export_folder

    written, problems = export_folder(folder, out)
    for path in written:
        tell(str(path))
    for problem in problems:
        say(f"warning: left out: {problem}")
    return Exit.FAILED if problems else Exit.DONE
