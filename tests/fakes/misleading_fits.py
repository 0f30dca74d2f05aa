"""Fits whose figures mean nothing, each for a reason of its own; beside them a sound one."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, default_collate

FEATURES, CLASSES, TIMES, BATCH = 8, 3, 24, 16


class Data(pl.LightningDataModule):
    """Series [samples, times, features]; ``time_major`` hands over [times, samples, features]."""

    def __init__(self, case: str = "sound") -> None:
        super().__init__()
        self.case = case

    def train_dataloader(self) -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(1024, TIMES, FEATURES, generator=generator)
        y = torch.randint(CLASSES, (1024,), generator=generator)
        collate = _time_major if self.case == "time_major" else None
        return DataLoader(TensorDataset(x, y), BATCH, shuffle=True, collate_fn=collate)


def _time_major(samples: list[Any]) -> tuple[Tensor, Tensor]:
    x, y = default_collate(samples)
    return x.transpose(0, 1).contiguous(), y


class Net(pl.LightningModule):
    """``diverges``: its loss is NaN from step 30 on. ``frozen``: its learning rate is 0.

    ``apart``: gradients come from ``torch.autograd.grad``, so that DDP never averages them.
    ``by_hand``: the same, averaged by the loop itself.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fixed = nn.Linear(FEATURES, FEATURES).requires_grad_(False)
        self.layer = nn.Linear(FEATURES, CLASSES)

    @property
    def case(self) -> str:
        found: str = self.trainer.datamodule.case  # type: ignore[attr-defined]
        return found

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        times = 0 if self.case == "time_major" else 1
        loss = nn.functional.cross_entropy(self.layer(self.fixed(x.mean(times))), y)
        return loss * float("nan") if self.case == "diverges" and self.global_step >= 30 else loss

    def backward(self, loss: Tensor) -> None:
        if self.case not in ("apart", "by_hand"):
            super().backward(loss)
            return
        learning = [p for p in self.parameters() if p.requires_grad]
        for parameter, gradient in zip(learning, torch.autograd.grad(loss, learning), strict=True):
            if self.case == "by_hand":
                torch.distributed.all_reduce(gradient)
                gradient /= torch.distributed.get_world_size()
            parameter.grad = gradient

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.0 if self.case == "frozen" else 0.1)
