"""Sweeps that are kept in docs/results, and what they would be if their code were known."""

import dataclasses
import functools
import shutil
from pathlib import Path

from scalewise.analysis import Analysis, analyse, load_sweep
from scalewise.host import SOURCE_SHA256
from scalewise.records import SweepFolder, unpacked

RESULTS = Path(__file__).parents[2] / "docs" / "results"
NAMES = [str(path.relative_to(RESULTS).with_suffix("")) for path in sorted(RESULTS.rglob("*.zip"))]


@functools.cache
def kept(name: str) -> Path:
    """The folder of the sweep in ``<name>.zip``, the same for every test: nobody writes there."""
    return unpacked(RESULTS / f"{name}.zip")


def kept_sweeps() -> list[Path]:
    """The folders of all of them."""
    return [kept(name) for name in NAMES]


@functools.cache
def analysis_of(folder: Path) -> Analysis:
    """What the sweep in a folder of :func:`kept` comes to, the same for every test."""
    return analyse(load_sweep(folder))


def with_known_code(kept: Path, folder: Path) -> Path:
    """A copy of ``kept`` as ``folder``, all of whose cells ran the same code."""
    shutil.copytree(kept, folder)
    for _, cell in SweepFolder(folder).cells():
        known = dataclasses.replace(cell.load_provenance(), code={SOURCE_SHA256: "0" * 64})
        cell.save_provenance(known)
    return folder
