"""Sweeps that were recorded before scalewise's sources were: as if their code were known."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

from scalewise.host import SOURCE_SHA256
from scalewise.records import SweepFolder


def with_known_code(kept: Path, folder: Path) -> Path:
    """A copy of ``kept`` as ``folder``, all of whose cells ran the same code."""
    shutil.copytree(kept, folder)
    for _, cell in SweepFolder(folder).cells():
        known = dataclasses.replace(cell.load_provenance(), code={SOURCE_SHA256: "0" * 64})
        cell.save_provenance(known)
    return folder
