"""A copy in the memory of a CPU."""

from __future__ import annotations

import pytest
import torch

from scalewise.doctor.copies import memory_copy

_CPU = torch.device("cpu")


def test_a_copy_in_memory_counts_bytes_read_and_written() -> None:
    rate = memory_copy(_CPU, 2**20, 0.01)
    assert rate.correct and rate.kind == "host"
    assert rate.gb_s == pytest.approx(2 * 2**20 / rate.timing.median_us / 1e3)
