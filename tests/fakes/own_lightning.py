"""What a user of Lightning might bring along, in the module ``lit`` beside his ``mine``."""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from mine import CLASSES, FEATURES, RANK, SlowSamples, samples
from torch import Tensor, nn
from torch.utils.data import DataLoader

from scalewise.models.mlp import Mlp


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
        self, forward_ms: float = 0, backward_ms: float = 0, optimizer_ms: float = 0,
        other_ms: float = 0, h2d_ms: float = 0, rank: int = -1,
    ) -> None:  # fmt: skip
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


class SpinSamples(SlowSamples):
    pause: Callable[[], None]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        type(self).pause()
        return super().__getitems__(indices)


class SpinData:
    def __init__(self) -> None:
        self.train = SpinSamples(samples(3200, 0), 0)


class Module(pl.LightningDataModule):
    """Decides on its own batches, whatever scalewise is asked for."""

    def __init__(self, batch_size: int = 10) -> None:
        super().__init__()
        self.batch_size = batch_size

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(samples(240, 0), batch_size=self.batch_size, shuffle=True, drop_last=True)


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
