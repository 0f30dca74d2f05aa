"""Published results that contradict themselves."""

from dataclasses import replace
from pathlib import Path

import pytest

from fakes.recorded import DDP, write_sweep
from fakes.sections import lines_of
from scalewise.analysis import check_published
from scalewise.records import DataError, ImportedResult, SweepFolder, build, save_record

RIGHT = ImportedResult(2, 128, 9.4, 128 / 9.4e-3)


def published(devices: int, factor: float) -> ImportedResult:
    """A batch of 128 at 9.4 ms a step, and ``factor`` times its throughput."""
    return replace(RIGHT, devices=devices, samples_per_s=factor * RIGHT.samples_per_s)


@pytest.mark.parametrize(
    ("result", "codes"),
    [
        (published(4, 1.0), []),
        (published(2, 1 / 2), ["per_replica_throughput"]),
        (published(8, 1 / 8), ["per_replica_throughput"]),
        (published(4, 4.0), ["inflated_throughput"]),
        (published(1, 1.0), []),
        (replace(RIGHT, communication_ms=3.0), []),
        # More communication than step: a timer that did not wait.
        (replace(RIGHT, communication_ms=58.0), ["unsynchronised_timing"]),
    ],
)
def test_figures_that_contradict_each_other_are_a_fault(
    tmp_path: Path, result: ImportedResult, codes: list[str]
) -> None:
    found = check_published(result)
    assert [one.code for one in found] == codes
    write_sweep(tmp_path, [replace(DDP, kind="cpu")])
    ((_, folder),) = SweepFolder(tmp_path).cells()
    save_record(folder.path, result)
    faults = lines_of(tmp_path, "faults")
    assert len(faults) == len(codes)
    assert all(one.reason in line for one, line in zip(found, faults, strict=True))


def test_a_line_without_a_step_time_is_no_line() -> None:
    line = {"devices": 2, "global_batch_size": 128, "step_time_ms": 0.0, "samples_per_s": 100.0}
    with pytest.raises(DataError) as caught:
        build(ImportedResult, line)
    assert caught.value.key == "step_time_ms"
