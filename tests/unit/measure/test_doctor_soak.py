"""An endurance run on a CPU."""

from __future__ import annotations

import pytest
import torch

from scalewise.doctor.compute import soak
from scalewise.records import DeviceSample

_CPU = torch.device("cpu")


def test_an_endurance_run_reads_the_device_once_a_window() -> None:
    readings = iter(range(100))

    def read() -> DeviceSample:
        return DeviceSample("x", temperature_c=40 + next(readings), throttle_reasons=())

    result = soak(_CPU, 0.6, read)
    assert [w.temperature_c for w in result.windows] == [40, 41, 42][: len(result.windows)]
    assert len(result.windows) in (2, 3)
    assert all(w.tflops > 0 and w.throttle_reasons == () for w in result.windows)
    assert result.windows[-1].at_s == pytest.approx(0.6, abs=0.3)
