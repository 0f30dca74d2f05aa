"""What a user might bring along: copied into a folder of his own by the tests that train it.

Lightning and torchmetrics, which take seconds to import, are for ``own_lightning`` beside it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

FEATURES, CLASSES = 8, 4
RANK = int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")))


def samples(count: int, seed: int) -> TensorDataset:
    drawn = np.random.default_rng(seed)
    x = torch.from_numpy(drawn.standard_normal((count, FEATURES), np.float32))
    return TensorDataset(x, torch.from_numpy(drawn.integers(CLASSES, size=count)))


class Data:
    """A training set, and an evaluation set that no number of ranks shares evenly."""

    def __init__(self, train: int = 320, validation: int = 101) -> None:
        self.train = samples(train, 0)
        self.validation = samples(validation, 1)


class Net(nn.Module):
    """Learns in training; in evaluation it "predicts" from the data alone, whatever it learned."""

    def __init__(self, width: int = 16, note: str = "") -> None:
        super().__init__()
        self.note = note
        self.layers = nn.Sequential(
            nn.Linear(FEATURES, width), nn.Tanh(), nn.Linear(width, CLASSES)
        )

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.layers(x) if self.training else x[:, :CLASSES]
        return output

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output, target)

    def metrics(self) -> Any:
        from torchmetrics import MetricCollection
        from torchmetrics.classification import MulticlassAccuracy

        means = {"accuracy": "micro", "accuracy_macro": "macro"}
        found = {name: MulticlassAccuracy(CLASSES, average=mean) for name, mean in means.items()}
        return MetricCollection(found)


class SlowSamples(Dataset[Any]):
    def __init__(self, inner: TensorDataset, seconds: float) -> None:
        self.inner, self.seconds = inner, seconds

    def __len__(self) -> int:
        return len(self.inner)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        time.sleep(self.seconds)
        return [self.inner[i] for i in indices]


class SlowData:
    """A loader that takes ``batch_ms`` for every batch."""

    def __init__(self, batch_ms: float = 0) -> None:
        self.train = SlowSamples(samples(320, 0), batch_ms / 1e3)


class Faulty(Net):
    """Fails in the way ``fault`` says, on one rank, at step ``at``; or only takes its time.

    With ``input_dropout`` its loss depends on random numbers. Every rank leaves a child in a
    session of its own, as careless code does.
    """

    def __init__(
        self, fault: str = "none", rank: int = 1, step_ms: float = 0, at: int = 3,
        input_dropout: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.fault = fault
        self.rank = rank
        self.step_ms = step_ms
        self.at = at
        self.input_dropout = input_dropout
        self.calls = 0
        subprocess.Popen(["sleep", "300"], start_new_session=True)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += self.training
        time.sleep(self.step_ms / 1e3)
        if self.calls == self.at and self.training and self.rank == RANK:
            self.fail(x.device)
        return super().forward(nn.functional.dropout(x, self.input_dropout, self.training))

    def fail(self, device: torch.device) -> None:
        if self.fault == "exception":
            raise RuntimeError("a fault of my own, = 'quoted'")
        if self.fault == "allocation":
            torch.empty(2**50, device=device)
        if self.fault == "sigkill_once" and not Path("killed").exists():
            Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "hang":
            time.sleep(600)


class StuckWhenReplayed(Net):
    """Computes as it should, but for replays of its captured step on rank 1: those never end."""

    def forward(self, x: Tensor) -> Tensor:
        if RANK == 1 and x.is_cuda and torch.cuda.is_current_stream_capturing():
            torch.cuda._sleep(10**13)  # cycles: more than an hour
        return super().forward(x)
