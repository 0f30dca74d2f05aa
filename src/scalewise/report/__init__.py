"""A sweep's answer for people (Markdown, plots, terminal) and for programs (JSON, CSV)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from scalewise.analysis.load import Sweep, load_sweep
from scalewise.analysis.summary import analyse
from scalewise.records import SweepFolder
from scalewise.report import balance_runs, device_memory, devices, export, markdown, plots, timeline
from scalewise.report import console as _console

__all__ = ["ReportFiles", "build", "print_console"]


@dataclass(frozen=True)
class ReportFiles:
    """What :func:`build` wrote."""

    markdown: Path
    json: Path
    csv: Path
    plots: tuple[Path, ...]


def build(sweep_folder: Path | str) -> ReportFiles:
    """Write ``<sweep>/report/``: report.md with its PNG plots, results.json and results.csv.

    Raises :class:`~scalewise.records.RecordError` where the folder holds no cell at all.
    """
    analysis = analyse(load_sweep(sweep_folder))
    folder = SweepFolder(sweep_folder).report_path
    folder.mkdir(parents=True, exist_ok=True)
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
        folder / "report.md",
        folder / "results.json",
        folder / "results.csv",
        tuple(folder / name for name in drawn),
    )
    files.markdown.write_text(markdown.render(analysis, list(drawn)), encoding="utf-8")
    _write_or_remove(folder / "gpu_summary.txt", device_memory.summary_text(analysis))
    _write_or_remove(folder / timeline.CSV_NAME, timeline.as_csv(analysis))
    files.json.write_text(export.as_json(analysis), encoding="utf-8")
    files.csv.write_text(export.as_csv(analysis), encoding="utf-8")
    return files


def _write_or_remove(path: Path, text: str) -> None:
    if text:
        path.write_text(text, encoding="utf-8")
    else:
        path.unlink(missing_ok=True)


def print_console(sweep: Sweep | Path | str, console: Console | None = None) -> None:
    """The same answer on a terminal; ``sweep`` is a loaded sweep or its folder."""
    loaded = sweep if isinstance(sweep, Sweep) else load_sweep(sweep)
    _console.show(analyse(loaded), console or Console())
