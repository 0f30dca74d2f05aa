"""Building a report: one analysis, its sections, and the files and lines that are made of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from scalewise.analysis import Analysis, analyse, load_sweep
from scalewise.records import SweepFolder
from scalewise.report import console as console_module
from scalewise.report import export
from scalewise.report import markdown as markdown_module
from scalewise.report.balance_tables import load_balance
from scalewise.report.communication_tables import communication, profiles, sent
from scalewise.report.cost_tables import cost, numbers_of_devices, target
from scalewise.report.device_tables import devices, divided, energy, memory_summary
from scalewise.report.doctor_tables import examined
from scalewise.report.doubts import disturbances, doubts, faults
from scalewise.report.findings import answer, batch_sizes, decisions, losses, mfu, repeats
from scalewise.report.plot_style import write_plots
from scalewise.report.plots import report_plots
from scalewise.report.run_facts import head, provenance, trackers, unfinished
from scalewise.report.scaling_tables import anatomy, resources, scaling
from scalewise.report.sections import Section

Source = Analysis | Path | str
"""A sweep: analysed already, or its folder."""
_TITLE = "Do more devices pay?"
_RESULTS = "results.json"


class ReportFolderError(ValueError):
    """A folder that no report can be written into: one line."""


@dataclass(frozen=True)
class ReportFiles:
    """What :func:`build` wrote."""

    replaced: bool
    """Whether there was a report before."""
    invalid: bool
    """Whether any configuration is invalid."""
    markdown: Path
    json: Path
    csv: Path
    plots: tuple[Path, ...]
    problems: tuple[str, ...] = ()
    """Plots that could not be written, one line each."""


def analysis_of(sweep: Source) -> Analysis:
    """The sweep's analysis, made where it is not given.

    Raises :class:`~scalewise.records.RecordError` where the sweep holds no cell at all.
    """
    return sweep if isinstance(sweep, Analysis) else analyse(load_sweep(sweep))


def report_folder(analysis: Analysis, out: Path | None) -> Path:
    """``out``, or the folder of the sweep's own report."""
    return out or SweepFolder(analysis.sweep.path).report_path


def report_sections(sweep: Source, samples: int | None = None) -> list[Section]:
    """What a report says, in the order of the page; sections without anything are left out.

    ``samples`` is how many somebody means to train: their time and cost are shown.
    """
    analysis = analysis_of(sweep)
    parts = (
        head, answer, numbers_of_devices, partial(target, samples=samples), cost, losses, decisions,
        batch_sizes, repeats, sent, scaling, resources, disturbances, anatomy, communication,
        profiles, examined, divided, mfu, load_balance, devices, energy, unfinished, faults, doubts,
        trackers, provenance,
    )  # fmt: skip
    return [found for part in parts if (found := part(analysis)).blocks]


def build(sweep: Source, out: Path | None = None, samples: int | None = None) -> ReportFiles:
    """Write report.md with its PNG plots, results.json and CSV files into ``<sweep>/report/``.

    A report is worth what its records are: one that is there is replaced. ``out`` is another folder
    for it; ``samples`` is how many somebody means to train. Raises
    :class:`~scalewise.records.RecordError` where the sweep holds no cell at all,
    :class:`ReportFolderError` where ``out`` holds other files, and OSError where nothing can be
    written.
    """
    if out is not None:
        _check_ours(out)
    analysis = analysis_of(sweep)
    folder = report_folder(analysis, out)
    folder.mkdir(parents=True, exist_ok=True)
    replaced = (folder / _RESULTS).exists()
    drawn, problems = write_plots(report_plots(analysis), folder)
    files = ReportFiles(
        replaced,
        bool(analysis.invalid),
        folder / "report.md",
        folder / _RESULTS,
        folder / "results.csv",
        tuple(folder / name for name in drawn),
        tuple(problems),
    )
    write_text(
        files.markdown, markdown_module.render(_TITLE, report_sections(analysis, samples), drawn)
    )
    _write_or_remove(folder / "gpu_summary.txt", memory_summary(analysis))
    _write_or_remove(folder / "gpu_timeline.csv", export.timeline_csv(analysis))
    write_text(files.json, export.results_json(analysis, samples))
    write_text(files.csv, export.results_csv(analysis))
    return files


def print_console(
    sweep: Source, console: Console | None = None, samples: int | None = None
) -> None:
    """The same answer on a terminal."""
    console_module.show(report_sections(sweep, samples), console or Console())


def _check_ours(folder: Path) -> None:
    """Plots of an earlier report are removed: nothing else may lie there under their names."""
    if not folder.exists() or (folder / _RESULTS).exists():
        return
    if not folder.is_dir() or any(folder.iterdir()):
        what = "which holds other files" if folder.is_dir() else "which is no folder"
        raise ReportFolderError(
            f"--out: found {folder}, {what}; allowed: a new or an empty folder, or one with an "
            "earlier report"
        )


def _write_or_remove(path: Path, text: str) -> None:
    if text:
        write_text(path, text)
    else:
        path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a file. A name may hold bytes that are no text: shown as what they are."""
    path.write_text(text, encoding="utf-8", errors="backslashreplace")
