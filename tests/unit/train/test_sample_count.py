"""Samples in whatever a loader hands over."""

from __future__ import annotations

import pytest
import torch

from scalewise.train.recording.step_timer import count_samples


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (torch.zeros(5, 2), 5),
        ((torch.zeros(4, 1), torch.zeros(4)), 4),
        ({"id": "x", "x": torch.zeros(3)}, 3),
        ([["a", "b"], torch.zeros(2)], 2),
        (torch.tensor(1.0), 1),
        ("text", 0),
        (None, 0),
    ],
)
def test_samples_are_counted_from_the_batch(batch: object, samples: int) -> None:
    assert count_samples(batch) == samples
