"""Published results that contradict themselves."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.recorded import DDP, write_sweep
from fakes.sections import lines_of
from scalewise.analysis.validity import check_published
from scalewise.records import DataError, ImportedResult, SweepFolder, build, to_plain

RIGHT = ImportedResult(2, 128, 9.4, 128 / 9.4e-3)


def published(devices: int, factor: float) -> ImportedResult:
    """A batch of 128 at 9.4 ms a step, and ``factor`` times its throughput."""
    return replace(RIGHT, devices=devices, samples_per_s=factor * RIGHT.samples_per_s)


@pytest.mark.parametrize(
    ("result", "codes"),
    [
        (published(4, 1.0), []),
        (published(2, 1 / 2), ["counted_batch"]),
        (published(8, 1 / 8), ["counted_batch"]),
        (published(2, 4.0), ["counted_batch"]),
        (published(4, 1.06), ["counted_batch"]),
        (published(4, 1.04), []),
        (published(1, 1.0), []),
        # Published figures are rounded: as much as 5 % above the step is none.
        (replace(RIGHT, communication_ms=1.04 * RIGHT.step_time_ms), []),
        # More communication than step: a timer that did not wait.
        (replace(RIGHT, communication_ms=1.06 * RIGHT.step_time_ms), ["unsynchronised_timing"]),
    ],
)
def test_figures_that_contradict_each_other_are_a_fault(
    tmp_path: Path, result: ImportedResult, codes: list[str]
) -> None:
    found = [*check_published(result)]
    assert [one.code for one in found] == codes
    write_sweep(tmp_path, [replace(DDP, kind="cpu")])
    ((_, folder),) = SweepFolder(tmp_path).cells()
    # As a person types it: without a version.
    (folder.path / result.FILE).write_text(json.dumps(to_plain(result)))
    said = [
        line for line in lines_of(tmp_path, "remarks") if any(one.text in line for one in found)
    ]
    assert len(said) == len(codes)


def test_a_line_without_a_step_time_is_no_line() -> None:
    line = {"devices": 2, "global_batch_size": 128, "step_time_ms": 0.0, "samples_per_s": 100.0}
    with pytest.raises(DataError) as caught:
        build(ImportedResult, line)
    assert caught.value.key == "step_time_ms"
