"""A sweep's answer for people (Markdown, plots, terminal) and for programs (JSON, CSV)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from scalewise.analysis.cells import Sweep
from scalewise.analysis.load import load_sweep
from scalewise.analysis.summary import Analysis, analyse
from scalewise.records import SweepFolder
from scalewise.report import balance_runs, device_memory, devices, export, markdown, plots, timeline
from scalewise.report import console as _console

_RESULTS = "results.json"

__all__ = ["ReportFiles", "ReportFolderError", "build", "print_console"]


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


def build(
    sweep_folder: Path | str, out: Path | None = None, samples: int | None = None
) -> ReportFiles:
    """Write report.md with its PNG plots, results.json and results.csv into ``<sweep>/report/``.

    A report is worth what its records are: one that is there is replaced. ``out`` is another folder
    for it; of ``samples``, a number that somebody means to train, it shows time and cost. Raises
    :class:`~scalewise.records.RecordError` where the sweep holds no cell at all,
    :class:`ReportFolderError` where ``out`` holds other files, and OSError where nothing can be
    written.
    """
    if out is not None:
        _check_ours(out)
    analysis = analyse(load_sweep(sweep_folder))
    return _write(analysis, out or SweepFolder(sweep_folder).report_path, samples)


def _write(analysis: Analysis, folder: Path, samples: int | None) -> ReportFiles:
    folder.mkdir(parents=True, exist_ok=True)
    replaced = (folder / _RESULTS).exists()
    drawn = plots.draw_all(analysis) | devices.draw_all(analysis)
    history = balance_runs.draw(analysis)
    if history is not None:
        drawn[balance_runs.NAME] = history
    for stale in {*plots.NAMES, *devices.NAMES, balance_runs.NAME} - set(drawn):
        # A plot of an earlier report would show what is no longer there.
        (folder / stale).unlink(missing_ok=True)
    for name, figure in drawn.items():
        figure.savefig(folder / name)
    files = ReportFiles(
        replaced,
        bool(analysis.invalid),
        folder / "report.md",
        folder / _RESULTS,
        folder / "results.csv",
        tuple(folder / name for name in drawn),
    )
    page = markdown.render(analysis, list(drawn), samples)
    _write_text(files.markdown, page)
    _write_or_remove(folder / "gpu_summary.txt", device_memory.summary_text(analysis))
    _write_or_remove(folder / timeline.CSV_NAME, timeline.as_csv(analysis))
    _write_text(files.json, export.as_json(analysis, samples))
    _write_text(files.csv, export.as_csv(analysis))
    return files


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
        _write_text(path, text)
    else:
        path.unlink(missing_ok=True)


def _write_text(path: Path, text: str) -> None:
    # A command or a folder's name may hold bytes that are no text: shown as what they are.
    path.write_text(text, encoding="utf-8", errors="backslashreplace")


def print_console(
    sweep: Sweep | Path | str, console: Console | None = None, samples: int | None = None
) -> None:
    """The same answer on a terminal; ``sweep`` is a loaded sweep or its folder."""
    loaded = sweep if isinstance(sweep, Sweep) else load_sweep(sweep)
    _console.show(analyse(loaded), console or Console(), samples)
