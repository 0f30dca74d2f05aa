"""Series that grow: whatever byte a file ends at, what is whole is read, once, and nothing else."""

import json
import struct
import tempfile
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.step_files import steady_rows, write_rows
from scalewise import records


def write_metrics(path: Path) -> None:
    with closing(records.MetricsWriter(path)) as writer:
        for step in range(5):
            writer.append(records.MetricRow(1.0, step, 0, 16 * step, {"loss": step / 3}))


def write_samples(path: Path) -> None:
    devices = (records.SampledDevice("GPU-0", 0, "a"),)
    with closing(records.DeviceSeriesWriter(path, "host", "nvml", 1.0, devices)) as writer:
        for when in range(5):
            writer.append(float(when), {"GPU-0": records.DeviceSample("GPU-0", 50.0 + when)}, 0.1)


def write_steps(path: Path) -> None:
    write_rows(path, *np.split(steady_rows(6), (1, 3)))


def header(**changes: Any) -> bytes:
    sound = {"schema_version": 2, "dtype": records.STEP_DTYPE.descr, "epoch_offset_ns": 2**62 - 1}
    return json.dumps({**sound, **changes}).encode() + b"\n"


LINES = partial(records.LineParser, dict)
KINDS: dict[str, tuple[Callable[[Path], None], Callable[[], Any], Callable[[Path], Any]]] = {
    "metrics": (write_metrics, LINES, lambda p: [r.samples for r in records.read_metrics(p)]),
    "devices": (write_samples, LINES, lambda p: list(records.read_device_series(p).times)),
    "steps": (write_steps, records.StepParser, lambda p: [*records.read_steps(p, 0).rows["step"]]),
}


def units(parsed: Any) -> list[Any]:
    return parsed.tolist() if isinstance(parsed, np.ndarray) else list(parsed)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_ends_anywhere_is_read_up_to_its_last_unit(tmp_path: Path, kind: str) -> None:
    write, _, read = KINDS[kind]
    path = tmp_path / "series"
    write(path)
    whole, all_units = path.read_bytes(), read(path)
    header = 0 if kind == "metrics" else whole.index(b"\n") + 1
    counts = set()
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        if size < header:
            with pytest.raises(records.RecordError, match=r"empty|the header is torn"):
                read(path)
            continue
        found = read(path)
        assert found == all_units[: len(found)]
        counts.add(len(found))
    assert max(counts) == len(all_units)
    assert len(counts) >= 4, "each whole unit counts as soon as it is there"


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_file_that_is_followed_gives_every_unit_once(kind: str, data: st.DataObject) -> None:
    write, parser, _ = KINDS[kind]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "series"
        write(path)
        whole = path.read_bytes()
        cuts = data.draw(st.lists(st.integers(0, len(whole)), max_size=12).map(sorted))
        path.unlink()
        tail = records.Tail(path, parser())
        found = units(tail.read())
        for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
            with path.open("ab") as file:
                file.write(whole[begin:end])
            found += units(tail.read())
        assert (found, units(tail.read())) == (units(parser().parse(whole)), [])


@pytest.mark.parametrize("content", [b'{"a": 9}\n', b'{"a": 9}\n{"a": 8}\n{"a": 7}\n', b"", None])
def test_a_file_begun_anew_or_removed_is_noticed(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": 2}\n')
    tail = records.Tail(path, LINES())
    tail.read()
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(records.RecordError, match=r"rows\.jsonl was (begun anew|removed)"):
        tail.read()


@pytest.mark.parametrize(
    ("parser", "content", "said"),
    [
        (LINES, b'{"a": 1}\nnot json\n', "line 2: not JSON"),
        (LINES, b"[]\n", "line 1: found no JSON object"),
        (records.StepParser, b"not json\n", "the header is not a step header"),
        (records.StepParser, b"[]\n", "the header is not a step header"),
        (records.StepParser, header(schema_version=3), "schema version 3"),
        (records.StepParser, header(dtype=records.STEP_DTYPE.descr[1:]), "schema version 2"),
        (records.StepParser, header(epoch_offset_ns=2**62), "epoch_offset_ns: found"),
        (records.StepParser, header() + bytes(8), "an impossible length"),
        (records.StepParser, header() + struct.pack("<II", 2**15 + 1, 0), "an impossible length"),
    ],
)
def test_what_is_no_series_is_named(
    tmp_path: Path, parser: Callable[[], Any], content: bytes, said: str
) -> None:
    path = tmp_path / "rows"
    path.write_bytes(content)
    with pytest.raises(records.RecordError, match=f"rows: .*{said}"):
        records.Tail(path, parser()).read()
    with pytest.raises(records.RecordError, match=r"cannot be read: found no plain file"):
        records.Tail(tmp_path, parser()).read()


# Files that lie among records and are none, and records whose values are of another kind.
HEADER = {
    "schema_version": 1, "host": "a", "source": "process", "interval_s": 1.0, "devices": [],
    "unavailable": {},
}  # fmt: skip


def test_a_copy_beside_a_record_is_no_record(tmp_path: Path) -> None:
    cell = records.CellFolder(tmp_path)
    attempt = records.Ending("failed", "exit", "it left", None, 1, None, (), 2, 1.0, 2.0)
    cell.save_attempt(attempt)
    for name in ("notes.json", "2 (copy).json", "02.json", "\N{SUPERSCRIPT TWO}.json", ".json"):
        (tmp_path / "attempts" / name).write_text("mine")
    assert (list(cell.attempts()), cell.next_attempt_number()) == ([attempt], 3)
    for folder, suffix in (("steps", "bin"), ("metrics", "jsonl")):
        (tmp_path / folder).mkdir()
        for rank in ("10", "9", "x", "0 (copy)", "09", ""):
            (tmp_path / folder / f"rank{rank}.{suffix}").touch()
    assert cell.ranks_with_steps() == cell.ranks_with_metrics() == [9, 10]


SAMPLE = {"time": 1.0, "devices": [], "cost_ms": 0.1}


@pytest.mark.parametrize(
    ("header", "line"),
    [
        *((one, SAMPLE) for one in ([], 3, HEADER | {"devices": 5}, HEADER | {"devices": [5]})),
        *((HEADER, SAMPLE | {"devices": d}) for d in (5, [5], [{"id": "a", "energy_j": 1e308}])),
        (HEADER, SAMPLE | {"time": "noon"}),
    ],
)
def test_a_series_of_another_kind_is_named(tmp_path: Path, header: Any, line: Any) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(header) + "\n" + json.dumps(line) + "\n")
    with pytest.raises(records.RecordError, match=r"a\.jsonl"):
        records.read_device_series(path)
