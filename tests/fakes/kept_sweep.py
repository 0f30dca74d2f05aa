"""Sweeps that are kept in docs/results, and what they would be if their code were known."""

import dataclasses
import functools
import shutil
from pathlib import Path

from scalewise.host import SOURCE_SHA256
from scalewise.records import SweepFolder, unpacked

RESULTS = Path(__file__).parents[2] / "docs" / "results"


@functools.cache
def kept(name: str) -> Path:
    """The folder of the sweep in ``<name>.zip``, the same for every test: nobody writes there."""
    return unpacked(RESULTS / f"{name}.zip")


def kept_sweeps() -> list[Path]:
    """The folders of all of them; an archive may hold several."""
    names = (path.relative_to(RESULTS) for path in sorted(RESULTS.rglob("*.zip")))
    folders = (kept(str(name.with_suffix(""))) for name in names)
    return [plan.parent for one in folders for plan in sorted(one.rglob("sweep.json"))]


def with_known_code(kept: Path, folder: Path) -> Path:
    """A copy of ``kept`` as ``folder``, all of whose cells ran the same code."""
    shutil.copytree(kept, folder)
    for _, cell in SweepFolder(folder).cells():
        known = dataclasses.replace(cell.load_provenance(), code={SOURCE_SHA256: "0" * 64})
        cell.save_provenance(known)
    return folder
