"""One cell, as one of its ranks sees it: build the parts, fit, score, close."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from pytorch_lightning.utilities.model_helpers import is_overridden
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from scalewise.config import CellConfig, ConfigError, instantiate
from scalewise.faults.plant import UnplantableError, planted
from scalewise.records import CellFolder, RankSummary
from scalewise.train.callbacks.recorder import CellRecorder
from scalewise.train.data import train_loader, validation_loader
from scalewise.train.lean import NoProfiler, trim
from scalewise.train.module import ExperimentModule
from scalewise.train.precision import apply_precision
from scalewise.train.rank import RankContext
from scalewise.train.strategy import build_strategy


def run(cell: CellConfig, folder: CellFolder, rank: RankContext) -> RankSummary:
    """Train this rank's replica and leave its records in ``folder``."""
    _quiet()
    pl.seed_everything(cell.seed, workers=True, verbose=False)
    apply_precision(cell.precision)
    module = build_module(cell, rank)
    data = build_data(cell, rank, module)
    recorder = CellRecorder(folder, rank.device, cell.warmup_steps, cell.log_every_n_steps)
    trainer = build_trainer(cell, rank, recorder, module, data)
    if rank.world_size > 1:
        # The replicas start alike (DDP copies rank 0's) but must not share dropout masks.
        torch.manual_seed(cell.seed + rank.rank)
    try:
        with planted(cell.fault, rank, module, data):
            trainer.fit(module, **data)
    except UnplantableError as error:
        raise ConfigError(str(error)) from error
    if cell.validation == "end" and can_score(module, data):
        trainer.validate(
            module,
            data.get("val_dataloaders"),
            datamodule=data.get("datamodule"),
            verbose=False,
        )
    return recorder.close(trainer, module)


def build_module(cell: CellConfig, rank: RankContext) -> pl.LightningModule:
    """The model as a LightningModule: a user's own as it is, any other wrapped."""
    model = instantiate("model", cell.model)
    if isinstance(model, pl.LightningModule):
        return model
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"model._target_: {cell.model.target} built a {type(model).__name__}; "
            "allowed: a LightningModule, or an nn.Module with loss(output, target)"
        )

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        built = instantiate(
            "optimizer", cell.optimizer, params=parameters, device_kind=rank.device.kind
        )
        assert isinstance(built, torch.optim.Optimizer)
        return built

    try:
        return ExperimentModule(model, optimizer)
    except ValueError as error:
        raise ConfigError(f"model.{error}") from error


def build_data(cell: CellConfig, rank: RankContext, module: pl.LightningModule) -> dict[str, Any]:
    """The arguments of ``Trainer.fit`` that carry the data.

    Raises ConfigError for data that cannot be read or that the model cannot train on.
    """
    dataset = instantiate("dataset", cell.dataset)
    if isinstance(dataset, pl.LightningDataModule):
        return {"datamodule": dataset}
    try:
        training = getattr(dataset, "train", dataset)
        validation = getattr(dataset, "validation", None)
        check = getattr(getattr(module, "network", None), "check_data", None)
        if check is not None and hasattr(dataset, "describe"):
            check(dataset.describe())
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if not hasattr(training, "__getitem__") or not hasattr(training, "__len__"):
        raise ConfigError(
            f"dataset._target_: {cell.dataset.target} has no map-style training set; allowed: "
            "a torch Dataset, an object with .train and .validation, or a LightningDataModule"
        )
    per_device = cell.per_device_batch_size(rank.world_size)
    place = (rank.rank, rank.world_size)
    try:
        loader = train_loader(
            training, cell.loader, per_device, *place, cell.seed, rank.device.kind
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error
    data: dict[str, Any] = {"train_dataloaders": loader}
    if validation is not None and cell.validation != "never":
        data["val_dataloaders"] = validation_loader(
            validation, cell.loader, per_device, *place, rank.device.kind
        )
    return data


def can_score(module: pl.LightningModule, data: dict[str, Any]) -> bool:
    """Whether there is something to validate and a way to: a user's own code may have neither."""
    datamodule = data.get("datamodule")
    has_data = "val_dataloaders" in data or (
        datamodule is not None and is_overridden("val_dataloader", datamodule)
    )
    return has_data and is_overridden("validation_step", module)


def build_trainer(
    cell: CellConfig,
    rank: RankContext,
    recorder: CellRecorder,
    module: pl.LightningModule,
    data: dict[str, Any],
) -> pl.Trainer:
    """A Trainer that does what the cell says and nothing that it does not."""
    during_fit = cell.validation == "epoch"
    has_batch_norm = any(isinstance(part, _BatchNorm) for part in module.modules())
    trainer = pl.Trainer(
        accelerator="gpu" if rank.device.kind == "cuda" else "cpu",
        devices=rank.world_size // rank.hosts,
        num_nodes=rank.hosts,
        strategy=build_strategy(cell.strategy, rank.device.kind, has_batch_norm),
        # Told, not guessed: an allocation of some cluster around us must not be mistaken for ours.
        plugins=[LightningEnvironment()],
        precision=cell.precision.lightning,
        max_steps=-1 if cell.max_steps is None else cell.max_steps,
        max_epochs=-1 if cell.max_epochs is None else cell.max_epochs,
        gradient_clip_val=cell.gradient_clip_norm,
        deterministic=cell.deterministic,
        # Warm-up decides what cudnn's search may cost; it must not change results behind our back.
        benchmark=False,
        callbacks=[recorder],
        profiler=NoProfiler(),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        limit_val_batches=1.0 if during_fit or cell.validation == "end" else 0,
        check_val_every_n_epoch=1 if during_fit else 2**31,
        # Our own samplers shard the data; a user's LightningDataModule gets Lightning's.
        use_distributed_sampler="datamodule" in data,
    )
    if isinstance(module, ExperimentModule):
        trim(trainer, recorder)
    return trainer


def _quiet() -> None:
    """Silence advice that does not apply: who shards, and how many workers load, is our choice."""
    for name in ("pytorch_lightning", "lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in (
        r".*does not have many workers.*",
        r".*`srun` command is available on your system but is not used.*",
        r".*defined a `validation_step` but have no `val_dataloader`.*",
        r".*The number of training batches .* is smaller than the logging interval.*",
        r".*`isinstance\(treespec, LeafSpec\)` is deprecated.*",
    ):
        warnings.filterwarnings("ignore", message=message)
