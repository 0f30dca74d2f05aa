"""What a user might bring along: copied into a folder of his own by the tests that train it."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from scalewise.models.mlp import Mlp

FEATURES, CLASSES = 8, 4
RANK = int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")))


def samples(count: int, seed: int) -> TensorDataset:
    drawn = np.random.default_rng(seed)
    x = torch.from_numpy(drawn.standard_normal((count, FEATURES), np.float32))
    y = torch.from_numpy(drawn.integers(CLASSES, size=count))
    return TensorDataset(x, y)


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

    def metrics(self) -> MetricCollection:
        return MetricCollection(
            {
                "accuracy": MulticlassAccuracy(CLASSES, average="micro"),
                "accuracy_macro": MulticlassAccuracy(CLASSES, average="macro"),
            }
        )


class Slowing(torch.autograd.Function):
    """Passes values on and pauses when their gradient comes by."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, pause: Callable[[], None]) -> Tensor:
        ctx.pause = pause
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.pause()
        return gradients[0], None


class SlowSgd(torch.optim.SGD):
    pause: Callable[[], None]

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        self.pause()
        return loss


class SlowModule(pl.LightningModule):
    """Sleeps a known number of milliseconds in each phase of a step; ``rank`` -1 is all ranks."""

    def __init__(
        self,
        forward_ms: float = 0,
        backward_ms: float = 0,
        optimizer_ms: float = 0,
        other_ms: float = 0,
        h2d_ms: float = 0,
        rank: int = -1,
    ) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)
        mine = rank in (-1, RANK)
        self.pauses_ms = {
            "forward": forward_ms * mine, "backward": backward_ms * mine,
            "optimizer": optimizer_ms * mine, "other": other_ms * mine, "h2d": h2d_ms * mine,
        }  # fmt: skip

    def pause(self, phase: str) -> None:
        time.sleep(self.pauses_ms[phase] / 1e3)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        self.pause("forward")
        output = Slowing.apply(self.layer(x), functools.partial(self.pause, "backward"))
        return nn.functional.cross_entropy(output, y)

    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
        self.pause("h2d")
        return super().transfer_batch_to_device(batch, device, dataloader_idx)

    def on_train_batch_end(self, *args: Any) -> None:
        self.pause("other")

    def validation_step(self, *args: Any) -> None: ...

    def configure_optimizers(self) -> torch.optim.Optimizer:
        optimizer = SlowSgd(self.parameters(), lr=0.01)
        optimizer.pause = functools.partial(self.pause, "optimizer")
        return optimizer


class SpinModule(SlowModule):
    """Keeps its GPU busy in each phase, in every second step for twice as long.

    The data set is a :class:`SpinData`. ``spins.json`` has the ms of each kernel, by phase. Its
    length counts cycles of a clock that falls under load, so two events tell it.
    """

    cycles_per_ms = 1_900_000  # of an H200: about

    def __init__(self, data_wait_ms: float, **pauses_ms: float) -> None:
        super().__init__(**pauses_ms)
        self.pauses_ms["data_wait"] = data_wait_ms
        self.spins: dict[str, list[tuple[Any, Any]]] = {phase: [] for phase in self.pauses_ms}
        SpinSamples.pause = functools.partial(self.pause, "data_wait")

    def pause(self, phase: str) -> None:
        spins = self.spins[phase]
        times = 1 + len(spins) % 2
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        torch.cuda._sleep(round(times * self.pauses_ms[phase] * self.cycles_per_ms))
        end.record()
        spins.append((begin, end))

    def on_train_end(self) -> None:
        torch.cuda.synchronize()
        told = {p: [b.elapsed_time(e) for b, e in spins] for p, spins in self.spins.items()}
        Path("spins.json").write_text(json.dumps(told))


class SlowSamples(Dataset[Any]):
    def __init__(self, inner: TensorDataset, seconds: float) -> None:
        self.inner, self.seconds = inner, seconds

    def __len__(self) -> int:
        return len(self.inner)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        time.sleep(self.seconds)
        return [self.inner[i] for i in indices]


class SpinSamples(SlowSamples):
    pause: Callable[[], None]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        type(self).pause()
        return super().__getitems__(indices)


class SpinData:
    def __init__(self) -> None:
        self.train = SpinSamples(samples(3200, 0), 0)


class SlowData:
    """A loader that takes ``batch_ms`` for every batch."""

    def __init__(self, batch_ms: float = 0) -> None:
        self.train = SlowSamples(samples(320, 0), batch_ms / 1e3)


class Module(pl.LightningDataModule):
    """Decides on its own batches, whatever scalewise is asked for."""

    def __init__(self, batch_size: int = 10) -> None:
        super().__init__()
        self.batch_size = batch_size

    def train_dataloader(self) -> DataLoader[Any]:
        data = samples(240, 0)
        return DataLoader(data, batch_size=self.batch_size, shuffle=True, drop_last=True)


class Faulty(Net):
    """Fails in the way ``fault`` says, on one rank, at step ``at``; or only takes its time.

    With ``input_dropout`` its loss depends on random numbers. Every rank leaves a child in a
    session of its own, as careless code does.
    """

    def __init__(
        self,
        fault: str = "none",
        rank: int = 1,
        step_ms: float = 0,
        at: int = 3,
        input_dropout: float = 0.0,
    ) -> None:
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


class Witness(Mlp):
    """Prints which GPUs and cores its rank has, as CUDA and the kernel tell it."""

    def __init__(self, step_ms: float = 0) -> None:
        super().__init__(features=50, hidden_widths=[256, 128, 64], targets=3)
        self.step_ms = step_ms
        seen = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        gpus = [f"GPU-{one.uuid}" for one in seen]
        print(json.dumps({"gpus": gpus, "cores": sorted(os.sched_getaffinity(0))}), flush=True)

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self.step_ms / 1e3)
        return super().forward(x)


class StuckWhenReplayed(Net):
    """Computes as it should, but for replays of its captured step on rank 1: those never end."""

    def forward(self, x: Tensor) -> Tensor:
        if RANK == 1 and x.is_cuda and torch.cuda.is_current_stream_capturing():
            torch.cuda._sleep(10**13)  # cycles: more than an hour
        return super().forward(x)
