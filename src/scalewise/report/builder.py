"""Builds a report: the analysis of a sweep, its sections, and the files written from them."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from scalewise.analysis import Analysis, Comparison, analyse, load_sweep
from scalewise.records import SweepFolder, write_atomically
from scalewise.report import console as console_module
from scalewise.report import export, page
from scalewise.report import markdown as markdown_module
from scalewise.report.answer import answers, in_detail
from scalewise.report.balance_tables import load_balance
from scalewise.report.communication_tables import communication, profiles, sent
from scalewise.report.cost_tables import best, cost, numbers_of_devices, target
from scalewise.report.device_tables import devices, divided, energy, memory_summary
from scalewise.report.doctor_tables import examined
from scalewise.report.findings import decisions, losses, mfu, repeats
from scalewise.report.front_page import front_page
from scalewise.report.plot_style import write_plots
from scalewise.report.plots import report_plots
from scalewise.report.remarks import remarks
from scalewise.report.run_facts import head, provenance, trackers, unfinished
from scalewise.report.scaling_tables import anatomy, resources, scaling
from scalewise.report.sections import Section
from scalewise.report.study_tables import alternative, averages, investment, sizes

Source = Analysis | Path | str
"""A sweep: its analysis, or its folder or archive."""
_TITLE = "Do more devices pay?"
_DETAILS = "Do more devices pay? In detail"
_RESULTS = "results.json"
_SIDES = "Sweeps side by side"
_COMPARISON = "comparison.json"


class ReportFolderError(ValueError):
    """No report can be written into the folder. The message is one line."""


@dataclass(frozen=True)
class ReportFiles:
    """The files that :func:`build` wrote."""

    replaced: bool
    """Whether there was a report before."""
    invalid: bool
    """Whether any configuration is invalid."""
    markdown: Path
    """The first page."""
    details: Path
    """Every section."""
    html: Path
    """Everything on one page, with pictures to filter."""
    json: Path
    csv: Path
    plots: tuple[Path, ...]
    problems: tuple[str, ...] = ()
    """Plots that could not be written, one line each."""


def analysis_of(sweep: Source) -> Analysis:
    """Analyse a sweep, unless its analysis is given.

    Raises :class:`~scalewise.records.RecordError` if the sweep has no cell.
    """
    return sweep if isinstance(sweep, Analysis) else analyse(load_sweep(sweep))


def report_folder(analysis: Analysis, out: Path | None) -> Path:
    """``out``, or the folder of the sweep's own report. Raises OSError where that is a link."""
    return out or own_folder(SweepFolder(analysis.sweep.home).report_path)


def own_folder(path: Path) -> Path:
    """``path``. Raises OSError where it is a link: others' files would be written over."""
    if path.is_symlink():
        raise OSError(errno.ELOOP, "found a link; allowed: a folder of the sweep's", str(path))
    return path


def report_sections(sweep: Source, samples: int | None = None) -> list[Section]:
    """The sections of details.md, in their order, without empty ones.

    ``samples`` is the number of samples to train, whose time and cost are shown.
    """
    analysis = analysis_of(sweep)
    parts = (
        head, in_detail, best, sizes, averages, numbers_of_devices,
        partial(target, samples=samples), cost, investment, alternative, losses,
        decisions, repeats, sent, scaling, resources, anatomy,
        communication, profiles, examined, divided, mfu, load_balance, devices, energy,
        unfinished, remarks, trackers, provenance,
    )  # fmt: skip
    return [section for part in parts if (section := part(analysis)).blocks]


def build(sweep: Source, out: Path | None = None, samples: int | None = None) -> ReportFiles:
    """Write report.html, report.md, details.md, PNG plots, JSON and CSV into ``<sweep>/report/``.

    An earlier report is replaced.

    Args:
        sweep: its analysis, or its folder.
        out: another folder for the report.
        samples: number of samples to train, whose time and cost are shown.

    Raises:
        RecordError: the sweep has no cell.
        ReportFolderError: ``out`` has other files.
        OSError: a file cannot be written.
    """
    if out is not None:
        _check_report_folder(out, _RESULTS)
    analysis = analysis_of(sweep)
    folder = report_folder(analysis, out)
    folder.mkdir(parents=True, exist_ok=True)
    replaced = (folder / _RESULTS).exists()
    drawn, problems = write_plots(report_plots(analysis), folder)
    files = ReportFiles(
        replaced,
        bool(analysis.invalid),
        folder / "report.md",
        folder / "details.md",
        folder / "report.html",
        folder / _RESULTS,
        folder / "results.csv",
        tuple(folder / name for name in drawn),
        tuple(problems),
    )
    whole = report_sections(analysis, samples)
    for path, title, sections in (
        (files.markdown, _TITLE, front_page(analysis, folder)),
        (files.details, _DETAILS, whole),
    ):
        write_text(path, markdown_module.render(title, sections, drawn))
    write_text(files.html, page.render(_TITLE, analysis, whole))
    _write_or_remove(folder / "gpu_summary.txt", memory_summary(analysis))
    _write_or_remove(folder / "gpu_timeline.csv", export.timeline_csv(analysis))
    write_text(files.json, export.results_json(analysis, samples))
    write_text(files.csv, export.results_csv(analysis))
    return files


def build_comparison(
    sections: Sequence[Section],
    analyses: Sequence[Analysis],
    ratios: Sequence[Comparison],
    out: Path,
) -> Path:
    """Write comparison.html, .md, .json and .csv into ``out``; returns the page.

    The last of ``sections``, what to take, comes first. An earlier comparison is replaced. Raises
    :class:`ReportFolderError` where ``out`` has other files, and OSError where none can be written.
    """
    _check_report_folder(out, _COMPARISON)
    # No sweep's own report needs these.
    from scalewise.report.comparison_tables import comparison_csv, comparison_json

    sections, page_path = [sections[-1], *sections[:-1]], out / "comparison.html"
    out.mkdir(parents=True, exist_ok=True)
    write_text(page_path, page.render_open(_SIDES, sections))
    write_text(out / "comparison.md", markdown_module.render(_SIDES, sections))
    write_text(out / "comparison.csv", comparison_csv(analyses))
    write_text(out / _COMPARISON, comparison_json(analyses, ratios))
    return page_path


def print_console(
    sweep: Source,
    console: Console | None = None,
    samples: int | None = None,
    *,
    verbose: bool = False,
) -> None:
    """Print the answer to a terminal; ``verbose``: below tables, losses and remarks."""
    analysis, console = analysis_of(sweep), console or Console()
    if verbose:
        console_module.show(report_sections(analysis, samples), console)
    parts = (head, unfinished, answers, partial(target, samples=samples), trackers)
    # What the devices are is the answer where nothing was trained.
    more = () if analysis.measured or verbose else (examined,)
    console_module.show_answer([part(analysis) for part in (*parts, *more)], console)


def _check_report_folder(folder: Path, kept: str) -> None:
    """Refuse a folder with other files, since plots of an earlier report are removed from it.

    ``kept`` is the file by which an earlier one is known. Raises :class:`ReportFolderError`.
    """
    if not folder.exists() or (folder / kept).exists():
        return
    if not folder.is_dir() or any(folder.iterdir()):
        what = "which holds other files" if folder.is_dir() else "which is no folder"
        raise ReportFolderError(
            f"--out: found {folder}, {what}; allowed: a new or an empty folder, or one with an "
            f"earlier {kept}"
        )


def _write_or_remove(path: Path, text: str) -> None:
    if text:
        write_text(path, text)
    else:
        path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file. Bytes of names that are not UTF-8 are escaped."""
    write_atomically(path, text.encode("utf-8", errors="backslashreplace"))
