"""The moment the last gradient is there, and what is counted, without a hook in the reduction."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from scalewise.train.recording.gradient_communication import GradientTraffic, LastGradient


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{tmp_path}/store")
    yield
    dist.destroy_process_group()


def test_the_mark_comes_once_a_pass_after_every_gradient(group: None) -> None:
    network = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2))
    model = DistributedDataParallel(network)
    traffic, marks = GradientTraffic(), []

    def mark() -> None:
        marks.append(sum(p.grad is not None for p in network.parameters()))

    last = LastGradient(model, mark, traffic)
    for step in range(5):
        marks.clear()
        model(torch.ones(4, 8)).sum().backward()
        last.after_backward()
        # The last call of a pass tells; from the third pass on it is the only one.
        assert marks[-1] == 6
        assert len(marks) == (6 if step < 2 else 1)
        model.zero_grad(set_to_none=True)
    size = sum(p.numel() for p in network.parameters()) * 4
    assert (traffic.bucket_bytes, traffic.buckets) == (size, 1)
    record = traffic.record(5)
    assert record is not None
    assert (record.rounds_per_step, record.payload_bytes_per_step) == (1.0, size)


def test_a_pass_that_reduces_nothing_is_neither_marked_nor_counted(group: None) -> None:
    model = DistributedDataParallel(nn.Linear(4, 1))
    traffic, marks = GradientTraffic(), [0]
    last = LastGradient(model, lambda: marks.__setitem__(0, marks[0] + 1), traffic)
    for _ in range(3):
        with model.no_sync():
            model(torch.ones(2, 4)).sum().backward()
        last.after_backward()
        assert marks == [0]
        model(torch.ones(2, 4)).sum().backward()
        last.after_backward()
        assert marks[0] > 0
        marks[0] = 0
    record = traffic.record(3)
    assert record is not None and record.rounds_per_step == 1.0


def test_the_buckets_are_those_that_last(group: None) -> None:
    """DDP begins with one bucket for everything, and cuts it once it has seen the order."""
    network = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4)))
    model = DistributedDataParallel(network, bucket_cap_mb=1.5)
    traffic = GradientTraffic()
    last = LastGradient(model, lambda: None, traffic)
    for _ in range(5):
        model(torch.ones(1, 512)).sum().backward()
        last.after_backward()
    size = sum(p.numel() for p in network.parameters()) * 4
    assert (traffic.bucket_bytes, traffic.buckets) == (size, 2)
    record = traffic.record(5)
    assert record is not None
    assert (record.rounds_per_step, record.payload_bytes_per_step) == (1.0, size)
