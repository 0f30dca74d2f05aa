"""Data on the GPU before the step that needs them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from scalewise.train.device import on_stream


def on_device(dataset: Dataset[Any], device: torch.device) -> Dataset[Any]:
    """``dataset`` with all of its data in the memory of ``device``.

    Raises ValueError for a data set that does not consist of tensors.
    """
    move = getattr(dataset, "to", None)
    if not callable(move):
        raise ValueError(
            f"dataset.loader.device_resident: found true, but {type(dataset).__name__} has no "
            "method to(device); allowed: a data set of tensors, or "
            "dataset.loader.device_prefetch=2"
        )
    moved = move(device)
    assert isinstance(moved, Dataset)
    return moved


class DevicePrefetchLoader(DataLoader[Any]):
    """A loader whose batches are on the current GPU, copied ``ahead`` batches early.

    Copies run on a stream of their own, beside the steps before them; the step's stream waits
    for the copy of its batch and nothing else. They overlap with computing only where the
    batches come in page-locked memory (``pin_memory=true``).
    """

    def __init__(self, ahead: int, *args: Any, **options: Any) -> None:
        self.ahead = ahead
        super().__init__(*args, **options)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        device = torch.device("cuda", torch.cuda.current_device())
        copying = torch.cuda.Stream(device)
        coming: deque[tuple[Any, torch.cuda.Event]] = deque()
        for batch in super().__iter__():
            with on_stream(copying):
                moved = _moved(batch, device)
                done = torch.cuda.Event()
                done.record(copying)
            coming.append((moved, done))
            if len(coming) > self.ahead:
                yield _ready(*coming.popleft())
        while coming:
            yield _ready(*coming.popleft())


def _moved(batch: Any, device: torch.device) -> Any:
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {name: _moved(part, device) for name, part in batch.items()}
    if isinstance(batch, (tuple, list)):
        return type(batch)(_moved(part, device) for part in batch)
    return batch


def _ready(batch: Any, done: torch.cuda.Event) -> Any:
    """``batch``, usable on the current stream: its memory is not reused before that is done."""
    stream = torch.cuda.current_stream()
    stream.wait_event(done)
    _claim(batch, stream)
    return batch


def _claim(batch: Any, stream: torch.cuda.Stream) -> None:
    if isinstance(batch, Tensor):
        batch.record_stream(stream)
    elif isinstance(batch, dict):
        for part in batch.values():
            _claim(part, stream)
    elif isinstance(batch, (tuple, list)):
        for part in batch:
            _claim(part, stream)
