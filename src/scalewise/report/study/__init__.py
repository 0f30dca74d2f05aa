"""The files of the published studies, by their names, from measured records.

``scalewise report FOLDER --study`` writes them to ``<sweep>/report/study``. Figures are those of
the report itself; what was not measured is empty, never zero.
"""

from __future__ import annotations

from pathlib import Path

from scalewise.analysis.load import load_sweep
from scalewise.analysis.summary import analyse
from scalewise.records import SweepFolder
from scalewise.report.study import benchmarks, figures, tables
from scalewise.report.study.selection import StudySelection, select

__all__ = ["StudySelection", "build"]


def build(
    sweep_folder: Path | str,
    wanted: StudySelection | None = None,
    report_folder: Path | None = None,
) -> tuple[Path, ...]:
    """Write every file that the sweep's records can fill, and return their paths.

    They lie in ``study`` of ``report_folder``, by default the sweep's own. Raises
    :class:`~scalewise.records.RecordError` where there is no cell at all, and ValueError where
    ``wanted`` names a data set that the sweep does not have.
    """
    chosen = wanted or StudySelection()
    analysis = select(analyse(load_sweep(sweep_folder)), chosen)
    folder = (report_folder or SweepFolder(sweep_folder).report_path) / "study"
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.iterdir():
        # All of it is ours: a file of an earlier study would show what is no longer there.
        stale.unlink()
    written = []
    for name, text in (*benchmarks.texts(analysis), *tables.texts(analysis)):
        path = folder / name
        path.write_text(text, encoding="utf-8")
        written.append(path)
    for name, figure in figures.draw_all(analysis, chosen.warmup_epochs):
        figure.savefig(folder / name)
        written.append(folder / name)
    return tuple(written)
