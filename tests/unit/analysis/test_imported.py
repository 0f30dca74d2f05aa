"""Published results that contradict themselves."""

import pytest

from scalewise.analysis.diagnosis import check_imported
from scalewise.records import DataError, ImportedResult, build


def limits(line: ImportedResult) -> list[str]:
    return [d.limit for d in check_imported(line)]


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_throughput_of_one_replica_is_named(devices: int) -> None:
    step_ms, batch = 9.4, 128
    right = batch / step_ms * 1e3
    assert limits(ImportedResult(devices, batch, step_ms, right)) == []
    (found,) = check_imported(ImportedResult(devices, batch, step_ms, right / devices))
    assert found.limit == "per-replica throughput"
    assert found.invalidates
    assert f"{devices} times higher" in found.evidence
    assert limits(ImportedResult(devices, batch, step_ms, right * devices)) == [
        "inflated throughput"
    ]


def test_one_device_has_no_replicas_to_mistake() -> None:
    assert limits(ImportedResult(1, 128, 10.0, 12_800.0)) == []


def test_more_communication_than_step_is_a_timer_that_did_not_wait() -> None:
    """Seed 001: 58 to 85 ms of communication inside a step of 9.4 ms."""
    line = ImportedResult(2, 128, 9.4, 128 / 9.4e-3, communication_ms=58.0)
    (found,) = check_imported(line)
    assert found.limit == "unsynchronised timing"
    assert limits(ImportedResult(2, 128, 9.4, 128 / 9.4e-3, communication_ms=3.0)) == []


def test_a_line_without_a_step_time_is_no_line() -> None:
    line = {"devices": 2, "global_batch_size": 128, "step_time_ms": 0.0, "samples_per_s": 100.0}
    with pytest.raises(DataError) as caught:
        build(ImportedResult, line)
    assert caught.value.key == "step_time_ms"
