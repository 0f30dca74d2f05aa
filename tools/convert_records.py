"""Rewrite kept sweeps in place in the present record formats, every number kept.

    python tools/convert_records.py FOLDER_OR_ZIP...

It needs the readers of the earlier formats, which stand here still: it reads by them and writes
by its own writers. Run it once, then the readers may go. A second run changes nothing. Folders are
searched for cells; a zip is unpacked, converted and packed again. Told: each kind of change, and
in how many files.

What changes in a file:
* result.json, ranks/rank*.json: former keys go (objective, host_probe, standstills,
  loader_samples_per_step, pruned_share, pruning_state_bytes); keys that are missing are written
  with their meaning, which is the default. elapsed_s of a result, where it is missing, becomes
  finished_at - started_at, as it is read today.
* provenance.json: own_code goes; missing keys are written. A host of twelve digits without a kind
  stays: no code reads kinds.
* attempts/*.json, sweep.json, tracking.json, profile/rank*.json, doctor.json: missing keys.
* steps/rank*.bin: schema version 1 becomes 2 (blocks with checksums); flag bit 2 goes.
* metrics/rank*.jsonl: step_samples is written as null where it is missing.
* audit/rank*.npz: data_shard is written as -1 where it is missing.
config.yaml and gpu/*.jsonl stay byte for byte.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from scalewise.records import (
    CellResult,
    DoctorReport,
    Ending,
    MetricRow,
    Provenance,
    RankSummary,
    SweepPlan,
    TrackingRecord,
    WindowProfile,
    build,
    load_json,
    read_shard,
    read_steps,
    to_plain,
    write_archive,
    write_atomically,
    write_shard,
)
from scalewise.records.steps import STEP_DTYPE, WARMUP, StepWriter

FORMER_FIELDS = {
    "Provenance": ("own_code",),
    "RankSummary": ("pruned_share", "pruning_state_bytes"),
}
"""Fields that a class may still have and that go with the readers."""
told: Counter[str] = Counter()


def main(arguments: list[str]) -> int:
    if not arguments:
        print(__doc__)
        return 2
    for path in map(Path, arguments):
        if path.suffix == ".zip":
            convert_zip(path)
        elif path.is_dir():
            convert_folder(path)
        else:
            raise SystemExit(f"{path}: found no folder and no zip")
    for what, count in sorted(told.items()):
        print(f"{count:6d}  {what}")
    return 0


def convert_zip(path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        with zipfile.ZipFile(path) as archive:
            archive.extractall(folder)
            before = sorted(archive.namelist())
        convert_folder(Path(folder))
        made = path.with_name(f"{path.stem}.converted.zip")
        write_archive(Path(folder), made)
        with zipfile.ZipFile(made) as archive:
            after = sorted(archive.namelist())
        if before != after:
            made.unlink()
            raise SystemExit(f"{path}: files differ: {set(before) ^ set(after)}")
        made.replace(path)


def convert_folder(root: Path) -> None:
    for path in sorted(one for one in root.rglob("*") if one.is_file()):
        kind = kind_of(path)
        if kind is not None:
            convert_json(path, kind)
        elif path.parent.name == "steps" and path.suffix == ".bin":
            convert_steps(path)
        elif path.parent.name == "metrics" and path.suffix == ".jsonl":
            convert_metrics(path)
        elif path.parent.name == "audit" and path.suffix == ".npz":
            convert_shard(path)


def kind_of(path: Path) -> Any:
    """The class of a JSON record by its place; None for any other file.

    A cell's result, provenance and tracking lie beside its config.yaml: a page's own
    ``result.json`` is none.
    """
    if path.suffix != ".json":
        return None
    in_cell = (path.parent / "config.yaml").exists()
    if in_cell and path.name in ("result.json", "provenance.json", "tracking.json"):
        return {"result": CellResult, "provenance": Provenance, "tracking": TrackingRecord}[
            path.stem
        ]
    if path.name == "sweep.json":
        return SweepPlan
    if path.name == "doctor.json":
        return DoctorReport
    of_cell = (path.parent.parent / "config.yaml").exists()
    kinds = {"ranks": RankSummary, "attempts": Ending, "profile": WindowProfile}
    kind = kinds.get(path.parent.name) if of_cell else None
    return Ending if kind is RankSummary and path.stem.endswith("error") else kind


def convert_json(path: Path, kind: Any) -> None:
    old = json.loads(path.read_text())
    version = old.get("schema_version")
    if version != 1:
        raise SystemExit(f"{path}: found schema version {version!r}; allowed: 1")
    new = without_former(kind.__name__, to_plain(load_json(path, kind)))
    if kind is CellResult:
        if new["elapsed_s"] is None:
            new["elapsed_s"] = max(0.0, new["finished_at"] - new["started_at"])
        new["ranks"] = [without_former("RankSummary", one) for one in new["ranks"]]
    new = {"schema_version": version, **new}
    if new == old:
        return
    for what in sorted(changes(old, new)):
        told[f"{kind.__name__}: {what}"] += 1
    text = json.dumps(new, indent=2, allow_nan=False, ensure_ascii=False)
    replace(path, text.encode(errors="backslashreplace") + b"\n")


def without_former(name: str, plain: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in plain.items() if k not in FORMER_FIELDS.get(name, ())}


def changes(old: Any, new: Any, at: str = "") -> Iterator[str]:
    """What differs, each kind once. Raises SystemExit for a value that was there and is another."""
    if isinstance(old, dict) and isinstance(new, dict):
        found = {f"without {at}{k}" for k in old.keys() - new.keys()}
        found |= {f"with {at}{k}" for k in new.keys() - old.keys()}
        for key in old.keys() & new.keys():
            found |= set(changes(old[key], new[key], f"{at}{key}."))
        yield from found
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        yield from {
            w for a, b in zip(old, new, strict=True) for w in changes(a, b, f"{at[:-1]}[].")
        }
    elif old != new:
        if at != "elapsed_s.":
            raise SystemExit(f"{at} would become {new!r}; it is {old!r}")
        yield f"other {at[:-1]}"


def convert_steps(path: Path) -> None:
    with path.open("rb") as file:
        version = json.loads(file.readline())["schema_version"]
    series = read_steps(path, 0)
    rows = series.rows
    if version == 2 and not (rows["flags"] & ~np.uint32(WARMUP)).any():
        return
    if series.torn_bytes:
        raise SystemExit(f"{path}: {series.torn_bytes} bytes are torn off: convert it by hand")
    whole = np.empty(len(rows), STEP_DTYPE)
    for name in STEP_DTYPE.names or ():
        whole[name] = rows[name]
    told[f"steps: schema version {version} becomes 2"] += 1
    if (whole["flags"] & ~np.uint32(WARMUP)).any():
        told["steps: without flag bit 2"] += 1
        whole["flags"] &= np.uint32(WARMUP)
    part = path.with_suffix(".part")
    writer = StepWriter(part, series.epoch_offset_ns)
    writer.append_rows(whole)
    writer.close()
    again = read_steps(part, 0)
    for name in STEP_DTYPE.names or ():
        if not np.array_equal(
            again.rows[name], whole[name], equal_nan=whole[name].dtype.kind == "f"
        ):
            raise SystemExit(f"{path}: {name} came back otherwise")
    moved_to(part, path)


def convert_metrics(path: Path) -> None:
    lines = path.read_text().split("\n")
    torn = lines.pop()
    rows = [json.loads(line) for line in lines]
    if all("step_samples" in row for row in rows):
        return
    for row in rows:
        build(MetricRow, dict(row))
        row.setdefault("step_samples", None)
    told["metrics: with step_samples"] += 1
    replace(path, "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode()
            + torn.encode())  # fmt: skip


def convert_shard(path: Path) -> None:
    with np.load(path) as data:
        if "data_shard" in data:
            return
    told["shard: with data_shard"] += 1
    part = path.with_name(f"{path.stem}.part.npz")
    write_shard(part, read_shard(path, 0))
    moved_to(part, path)


def replace(path: Path, data: bytes) -> None:
    stat = path.stat()
    write_atomically(path, data)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def moved_to(part: Path, path: Path) -> None:
    stat = path.stat()
    part.replace(path)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
