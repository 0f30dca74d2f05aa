"""What a fit of Lightning's is made of, in scalewise's words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.strategies import DDPStrategy, FSDPStrategy, SingleDeviceStrategy

from scalewise.config import default_project
from scalewise.train.monitored import describe_model, describe_optimizers, full_name, seed_set

_STRATEGIES: Mapping[type, str] = {
    SingleDeviceStrategy: "single",
    DDPStrategy: "ddp",
    FSDPStrategy: "fsdp",
}
_PRECISIONS: Mapping[str, str] = {"32-true": "fp32", "16-mixed": "fp16-mixed"}
"""Lightning's names that differ from scalewise's; the others are the same, or are only its own."""


def describe_fit(
    trainer: pl.Trainer, module: pl.LightningModule, warmup_steps: int, trackers: Sequence[str]
) -> dict[str, Any]:
    """The configuration of this fit in scalewise's words, once data and optimizers are set up.

    Two monitored runs are comparable (``scalewise compare``), and repeats of each other, where all
    of it agrees. The rest of the script, the number of devices among it, is not part of it: the
    records tell what ran.
    """
    loader = trainer.train_dataloader
    dataset = getattr(loader, "dataset", loader)
    batch_size = getattr(loader, "batch_size", None)
    return {
        "model": describe_model(module),
        "dataset": {
            "name": type(dataset).__name__,
            "class": full_name(type(dataset)),
            "samples": len(dataset) if isinstance(dataset, Sized) else None,
            "workers": getattr(loader, "num_workers", None),
        },
        "strategy": {"name": strategy_name(trainer)},
        "hardware": {"name": "auto"},
        "optimizer": describe_optimizers(trainer.optimizers),
        "precision": {"name": _precision_name(trainer)},
        "execution": {"name": "eager"},
        # Per process; None where the loader has a batch sampler of its own.
        "batch_size": batch_size if isinstance(batch_size, int) else None,
        # Lightning's -1 is no limit, which scalewise's configurations write as null.
        "max_steps": None if trainer.max_steps == -1 else trainer.max_steps,
        "max_epochs": None if trainer.max_epochs == -1 else trainer.max_epochs,
        "accumulate_grad_batches": trainer.accumulate_grad_batches,
        "gradient_clip_norm": trainer.gradient_clip_val,
        "warmup_steps": warmup_steps,
        **seed_set(),
        "tracking": {"name": "monitor", "trackers": list(trackers), "project": default_project()},
    }


def strategy_name(trainer: pl.Trainer) -> str:
    """As scalewise names it where it is Lightning's own, else the name of its class.

    A class of the user's own keeps its name, also where it derives from one of Lightning's.
    """
    cls = type(trainer.strategy)
    return _STRATEGIES.get(cls, cls.__name__)


def _precision_name(trainer: pl.Trainer) -> str:
    """As scalewise names it: Lightning's ``32-true`` is tf32 where fp32 products may use it."""
    name = str(trainer.precision)
    if name == "32-true" and trainer.strategy.root_device.type == "cuda" and _tf32_is_on():
        return "tf32"
    return _PRECISIONS.get(name, name)


def _tf32_is_on() -> bool:
    """Whether matrix products may use tf32. Reading torch's older switch raises after the newer."""
    newer = getattr(torch.backends.cuda.matmul, "fp32_precision", None)
    return bool(torch.backends.cuda.matmul.allow_tf32) if newer is None else newer == "tf32"
