"""A sweep as one zip: the records that a report reads, written and read back.

An allow list says which files are in it; data, checkpoints, logs and trackers' files never are.
The same records give the same bytes. Nothing in them is changed: names of hosts, users, projects
and paths stand as they were recorded.
"""

from __future__ import annotations

import atexit
import os
import stat
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Final

from scalewise.records.files import RecordError, read_plain

_MOST_FILES: Final = 100_000
_MOST_BYTES: Final = 1_000_000_000
"""Unpacked. Whoever reads them needs a few times as much memory."""
_MOST_TIMES: Final = 200
"""Unpacked bytes for each byte of the archive: records of sweeps have 3 to 20."""
_RECORDS: Final = (
    "sweep.json", "provenance.json", "result.json", "running.json", "tracking.json",
    "decision.json", "imported.json", "doctor.json", "config.yaml", "ranks/*.json", "ranks/*.err",
    "attempts/*.json", "heartbeat/rank*", "steps/rank*.bin", "metrics/rank*.jsonl",
    "audit/rank*.npz", "profile/rank*.json", "gpu/*.jsonl",
)  # fmt: skip


def write_archive(folder: Path, out: Path) -> int:
    """Write the sweep (or the single cell) in ``folder`` into the new zip ``out``.

    Returns how many files are in it. Raises :class:`RecordError` where ``folder`` holds no record,
    ``out`` is there already, or the records are more than :func:`unpacked` takes; and OSError.
    """
    files = sorted(_records(folder))
    if not files:
        raise RecordError(f"{folder}: found no record; allowed: the folder of a sweep or of a cell")
    if out.exists():
        raise RecordError(f"{out}: found a file; allowed: a new one")
    part = out.with_name(f"{out.name}.part")  # an archive that was cut off is none
    try:
        with zipfile.ZipFile(part, "w") as archive:
            for path in files:
                # Of no time and no owner: equal records, equal bytes.
                entry = zipfile.ZipInfo(path.relative_to(folder).as_posix())
                entry.external_attr = (stat.S_IFREG | 0o644) << 16
                archive.writestr(entry, read_plain(path), zipfile.ZIP_DEFLATED, compresslevel=9)
        _check(out, part.stat().st_size, archive.infolist())
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)
    return len(files)


def unpacked(path: Path) -> Path:
    """The folder of the sweep at ``path``: that itself, or what the zip there was unpacked into.

    That one is removed when the process ends. Raises :class:`RecordError` for a file that is no
    archive, or whose files would lead elsewhere or fill the disk.
    """
    if not path.is_file():
        return path
    held = TemporaryDirectory(prefix="scalewise-")
    atexit.register(held.cleanup)  # series are read when they are asked for
    folder = Path(held.name) / path.stem
    try:
        with zipfile.ZipFile(path) as archive:
            _check(path, path.stat().st_size, archive.infolist())
            archive.extractall(folder)
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, NotImplementedError,
            RuntimeError) as error:  # fmt: skip
        raise RecordError(
            f"{path}: found no whole archive ({error}); allowed: what `scalewise bundle` wrote"
        ) from error
    for running in folder.rglob("running.json"):
        os.utime(running, (0, 0))  # nobody runs it here
    return folder


def _check(path: Path, packed_bytes: int, entries: list[zipfile.ZipInfo]) -> None:
    size, most = sum(e.file_size for e in entries), min(_MOST_BYTES, _MOST_TIMES * packed_bytes)
    if size > most or len(entries) > _MOST_FILES:
        raise RecordError(
            f"{path}: found {len(entries):,} files of {size:,} bytes; allowed: up to "
            f"{_MOST_FILES:,} of {most:,}"
        )
    for entry in entries:
        inside = PurePosixPath(entry.filename)
        plain = stat.S_IFMT(entry.external_attr >> 16) in (0, stat.S_IFREG, stat.S_IFDIR)
        if inside.is_absolute() or ".." in inside.parts or not plain:
            raise RecordError(
                f"{path}: found {entry.filename!r}; allowed: plain files inside the archive"
            )


def _records(folder: Path) -> Iterator[Path]:
    """Plain files, in the sweep's folder and in those of its cells."""
    begun = (*folder.glob("*/config.yaml"), *folder.glob("*/attempts"))
    for place in (folder, *{path.parent for path in begun}):
        for pattern in _RECORDS:
            yield from (p for p in place.glob(pattern) if p.is_file() and not p.is_symlink())
