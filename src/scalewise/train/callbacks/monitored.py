"""What a script of one's own trains, in the words in which scalewise's configurations say it.

Two monitored runs are comparable (``scalewise compare``), and repeats of each other, where all of
this agrees: class, source and size of the model, class and length of the data, optimizer and its
settings, precision, length of the fit, accumulation, clipping, loader workers, batch size. The rest
of the script, the number of devices among it, is not part of it: the records tell what ran.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Mapping, Sequence, Sized
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.strategies import DDPStrategy, FSDPStrategy, SingleDeviceStrategy

_STRATEGIES: Mapping[type, str] = {
    SingleDeviceStrategy: "single",
    DDPStrategy: "ddp",
    FSDPStrategy: "fsdp",
}
_PRECISIONS: Mapping[str, str] = {"32-true": "fp32", "16-mixed": "fp16-mixed"}
"""Lightning's names that differ from scalewise's; the others are the same, or are only its own."""
_LIBRARIES = frozenset({"torch", "pytorch_lightning", "lightning", "lightning_fabric", "builtins"})


def describe_fit(
    trainer: pl.Trainer, module: pl.LightningModule, warmup_steps: int, trackers: Sequence[str]
) -> dict[str, Any]:
    """The configuration of this fit, once its data and optimizers are set up."""
    return {
        "model": {
            "name": type(module).__name__,
            "class": _full_name(type(module)),
            "source_sha256": _source_sha256(module),
            "parameters": sum(p.numel() for p in module.parameters()),
        },
        "dataset": _describe_data(trainer),
        "strategy": {"name": strategy_name(trainer)},
        "hardware": {"name": "auto"},
        "optimizer": _describe_optimizers(trainer.optimizers),
        "precision": {"name": _precision_name(trainer)},
        "execution": {"name": "eager"},
        "batch_size": _batch_size(trainer),
        "max_steps": _limit(trainer.max_steps),
        "max_epochs": _limit(trainer.max_epochs),
        "accumulate_grad_batches": trainer.accumulate_grad_batches,
        "gradient_clip_norm": trainer.gradient_clip_val,
        "warmup_steps": warmup_steps,
        "tracking": {"name": "monitor", "trackers": list(trackers)},
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
    """Of matrix products. Once a script has used torch's newer switch, reading the older raises."""
    newer = getattr(torch.backends.cuda.matmul, "fp32_precision", None)
    return bool(torch.backends.cuda.matmul.allow_tf32) if newer is None else newer == "tf32"


def config_id(config: Mapping[str, Any], world_size: int) -> str:
    """The same for two fits if and only if they repeat each other, trackers aside."""
    plain = {k: v for k, v in config.items() if k != "tracking"} | {"world_size": world_size}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:8]


def _batch_size(trainer: pl.Trainer) -> int | None:
    """Of each process; None where the loader has a batch sampler of its own."""
    found = getattr(trainer.train_dataloader, "batch_size", None)
    return found if isinstance(found, int) else None


def _describe_data(trainer: pl.Trainer) -> dict[str, Any]:
    loader = trainer.train_dataloader
    dataset = getattr(loader, "dataset", loader)
    return {
        "name": type(dataset).__name__,
        "class": _full_name(type(dataset)),
        "samples": len(dataset) if isinstance(dataset, Sized) else None,
        "workers": getattr(loader, "num_workers", None),
    }


def _describe_optimizers(optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, Any]:
    """Names joined by ``+``, and the settings of the first group of the first one."""
    settings = optimizers[0].param_groups[0] if optimizers else {}
    return {
        "name": "+".join(type(o).__name__ for o in optimizers) or "none",
        **{
            name: value
            for name, value in settings.items()
            if isinstance(value, bool | int | float | str)
        },
    }


def _limit(steps_or_epochs: int | None) -> int | None:
    """Lightning's -1 is no limit, which scalewise's configurations write as null."""
    return None if steps_or_epochs == -1 else steps_or_epochs


def _source_sha256(module: pl.LightningModule) -> str | None:
    """Of the classes that are the user's own, from the module down to its layers; None where a
    source cannot be read (typed into an interpreter)."""
    own = {
        base
        for part in module.modules()
        for base in type(part).__mro__
        if base.__module__.partition(".")[0] not in _LIBRARIES
    }
    try:
        sources = [inspect.getsource(cls) for cls in sorted(own, key=_full_name)]
    except (OSError, TypeError):
        return None
    return hashlib.sha256("\n".join(sources).encode()).hexdigest()


def _full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
