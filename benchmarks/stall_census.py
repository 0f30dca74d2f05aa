"""Which recorded cells were stalled: stalls of all ranks at once, and contexts on another GPU.

    python benchmarks/stall_census.py docs/results [FOLDER ...]

One line for each finished cell below the folders. Exit status 1 if a cell on several devices has
a stall, a rank on another rank's GPU or extra memory on its first one. What cannot be told is
printed and is no failure: cells under a profiler, cells too short for two samples.

Census of 22 November 2026, before a rank's threads chose their device: 31 of 31 cells that
trained on several GPUs are named, none of 22 on one GPU and none of 12 on CPUs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from scalewise.analysis import CODES, CellRecords, Disturbance
from scalewise.analysis.disturbances import disturbances
from scalewise.analysis.load import load_cell
from scalewise.records import CellFolder

SHORT = {
    "rank_on_other_gpu": "context",
    "foreign_process": "foreign",
    "extra_memory_on_gpu0": "memory",
    "common_stall": "stall",
    "foreign_cpu": "cpu",
}


def trained_cells(folders: Iterable[Path]) -> Iterator[CellRecords]:
    """Every finished cell with steps, in the order of its path."""
    for folder in folders:
        for path in sorted(folder.rglob("result.json")):
            cell = load_cell(CellFolder(path.parent), None)
            if cell.result is not None and cell.steps:
                yield cell


def line(cell: CellRecords, found: Iterable[Disturbance]) -> str:
    """Devices, protocol where it is recorded, and each finding in a word with its detail."""
    assert cell.result is not None
    protocol = cell.provenance.protocol if cell.provenance is not None else None
    words = [f"{cell.path}:", f"{cell.result.world_size} x {cell.result.ranks[0].device.kind}"]
    if protocol is not None:
        words.append(f"protocol {protocol}")
    by_code = {one.code: one for one in found}
    for code in CODES:
        one = by_code.get(code)
        if one is not None:
            told = one.detail if one.status == "found" else f"cannot be told ({one.detail})"
            words.append(f"[{SHORT[code]}] {told}")
    return " ".join(words if by_code else [*words, "clear"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path)
    stalled: dict[str, int] = {}
    cells: dict[str, int] = {}
    for cell in trained_cells(parser.parse_args().folders):
        assert cell.result is not None
        found = disturbances(cell)
        print(line(cell, found))
        several = "several" if cell.result.world_size > 1 else "one"
        kind = f"{several} {cell.result.ranks[0].device.kind}"
        cells[kind] = cells.get(kind, 0) + 1
        named = any(f.status == "found" and not f.code.startswith("foreign") for f in found)
        stalled[kind] = stalled.get(kind, 0) + named
    for kind, number in cells.items():
        print(f"{kind}: {stalled[kind]} of {number} cells named")
    return int(any(number for kind, number in stalled.items() if kind.startswith("several")))


if __name__ == "__main__":
    sys.exit(main())
