"""Communication from a profiler's events: by name, merged, overlapped with computation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from scalewise.train.recording.profiler import (
    TimedOperation,
    covered_ns,
    host_operations,
    kernels,
    merged,
    shared_ns,
    summarise_window,
)

CUDA, CPU = torch.autograd.DeviceType.CUDA, torch.autograd.DeviceType.CPU
MS = 1_000_000


@dataclass
class Event:
    """The part of kineto's event that is read."""

    label: str
    begin_ns: int
    length_ns: int
    where: object = CUDA
    annotation: bool = False
    thread: int = 1

    def name(self) -> str:
        return self.label

    def start_ns(self) -> int:
        return self.begin_ns

    def duration_ns(self) -> int:
        return self.length_ns

    def device_type(self) -> object:
        return self.where

    def is_user_annotation(self) -> bool:
        return self.annotation

    def start_thread_id(self) -> int:
        return self.thread


def intervals(*pairs: tuple[int, int]) -> np.ndarray:
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def test_overlapping_intervals_are_counted_once_and_in_order() -> None:
    streams = intervals((0, 10), (5, 15), (6, 8), (20, 30), (15, 16))
    assert merged(streams).tolist() == [[0, 16], [20, 30]]
    assert covered_ns(intervals()) == shared_ns(intervals(), intervals((0, 5))) == 0


def test_interval_arithmetic_agrees_with_counting_every_nanosecond() -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        sides = []
        for _ in range(2):
            begins = random.integers(0, 200, size=random.integers(1, 12))
            sides.append(np.stack((begins, begins + random.integers(0, 30, len(begins))), axis=1))
        there = [{ns for a, b in side for ns in range(a, b)} for side in sides]
        assert covered_ns(sides[0]) == len(there[0])
        assert shared_ns(*sides) == len(there[0] & there[1])


def test_nccl_kernels_on_two_streams_are_communication_counted_once() -> None:
    events = [
        Event("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 0, 4 * MS),
        Event("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 2 * MS, 4 * MS),
        Event("sm90_gemm", 1 * MS, 2 * MS),
        Event("Memcpy HtoD", 9 * MS, 1 * MS),
        # Ranges are drawn on the device as well, over the gaps between kernels: they are no work.
        Event("nccl:all_reduce", 0, 20 * MS, annotation=True),
        Event("step", 0, 20 * MS),
        Event("step", 0, 20 * MS, where=CPU, annotation=True),
        Event("aten::mm", 0, 20 * MS, where=CPU),
    ]
    found = summarise_window(0, 2, "device", kernels(events))
    assert found.communication_ms == pytest.approx(3.0)
    assert found.overlapped_ms == pytest.approx(1.0)
    assert found.computation_ms == pytest.approx(1.5)
    assert found.span_ms == pytest.approx(5.0)
    (talk,) = [o for o in found.operations if o.communication]
    assert (talk.calls, talk.ms_per_step) == (2, pytest.approx(4.0))


def test_on_a_cpu_collectives_are_ranges_and_only_the_training_thread_computes() -> None:
    events = [
        Event("gloo:all_reduce", 0, 10 * MS, CPU, annotation=True, thread=3),
        Event("c10d::allreduce_", 0, 1 * MS, CPU),
        Event("aten::mm", 2 * MS, 3 * MS, CPU),
        Event("aten::add", 12 * MS, 1 * MS, CPU),
        Event("aten::copy_", 0, 9 * MS, CPU, thread=3),
    ]
    found = summarise_window(0, 1, "host", host_operations(events))
    assert found.communication_ms == pytest.approx(10.0)
    assert found.overlapped_ms == pytest.approx(3.0)
    assert found.computation_ms == pytest.approx(4.0)


def test_no_collective_is_missing_and_not_zero() -> None:
    found = summarise_window(0, 1, "device", [TimedOperation("gemm", 0, MS, communication=False)])
    assert found.communication_ms is None and found.overlapped_ms is None
    assert "communication_ms" in found.missing
    with pytest.raises(ValueError, match="steps: found 0"):
        summarise_window(0, 0, "device", [])


def test_collectives_are_kept_one_by_one_in_the_order_in_which_they_began() -> None:
    spans = [
        TimedOperation("ncclAllReduce", 20 * MS, 23 * MS, communication=True),
        TimedOperation("gemm", 0, 30 * MS, communication=False),
        TimedOperation("ncclAllReduce", 5 * MS, 12 * MS, communication=True),
    ]
    assert summarise_window(0, 1, "device", spans).collectives_ms == (7.0, 3.0)
