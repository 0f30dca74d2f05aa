"""The parts of one cell on one rank: the module, its strategy, its data, and who feeds what."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.model_helpers import is_overridden
from torch import nn

from scalewise.config import NO_TEST, CellConfig, ConfigError, instantiate, refuse_as
from scalewise.models import returns_loss
from scalewise.operations import Operation
from scalewise.train.callbacks import build_schedule
from scalewise.train.data import GlobalBatchSampler, OwnLoaders, ShardBatchSampler, make_loader
from scalewise.train.execution import ExperimentModule, KeywordModule, OperationModule
from scalewise.train.rank import RankContext
from scalewise.train.recording import BatchSizes, DataShare
from scalewise.train.strategies import (
    FsdpStrategy,
    HeterogeneousDDP,
    LocalSgd,
    OwnStreamDDP,
    PipelineStrategy,
    Setting,
    UnwrappedReplicas,
)


def build_module(cell: CellConfig) -> pl.LightningModule:
    """The cell's model as a LightningModule.

    A user's own LightningModule stays as it is, any other model is wrapped.
    """
    model = instantiate("model", cell.model)
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"model._target_: {cell.model.target} built a {type(model).__name__}; "
            "allowed: a LightningModule, or an nn.Module with loss(output, target)"
        )
    if isinstance(model, pl.LightningModule):
        if cell.scheduler is not None:
            raise ConfigError(
                f"scheduler: found {cell.scheduler.component.name} beside model._target_="
                f"{cell.model.target}, a LightningModule, which builds its own; allowed: none"
            )
        return model
    if isinstance(model, Operation):
        if cell.strategy.kind not in ("single", "ddp"):
            raise ConfigError(
                f"strategy: found {cell.strategy.name} with model={cell.model.name}, which only "
                "runs forward; allowed: single, ddp"
            )
        return OperationModule(model)
    schedule = functools.partial(build_schedule, cell.scheduler) if cell.scheduler else None
    with refuse_as("model"):
        kind = ExperimentModule
        if returns_loss(model):
            kind = KeywordModule
            model.train()  # from_pretrained's is one that predicts, and Lightning keeps that
        return kind(model, functools.partial(_build_optimizer, cell), schedule)


def _build_optimizer(cell: CellConfig, parameters: Any) -> torch.optim.Optimizer:
    built = instantiate("optimizer", cell.optimizer, params=parameters)
    if not isinstance(built, torch.optim.Optimizer):
        raise ConfigError(
            f"optimizer._target_: {cell.optimizer.target} built a {type(built).__name__}; "
            "allowed: a torch.optim.Optimizer"
        )
    return built


BUILDERS: dict[str, Callable[[Any, Setting], Any]] = {
    "single": lambda config, setting: "auto",
    "ddp": OwnStreamDDP,
    "local_sgd": LocalSgd,
    "task_parallel": UnwrappedReplicas,
    "heterogeneous": HeterogeneousDDP,
    "fsdp": FsdpStrategy,
    "pipeline": PipelineStrategy,
    "rehearsal": OwnStreamDDP,
    "fsdp_rehearsal": FsdpStrategy,
}
"""Lightning's strategy by ``kind``. ``single`` is Lightning's own choice; for ``auto``, the sweep
chooses one of these before a cell starts."""


def build_strategy(cell: CellConfig, rank: RankContext, module: pl.LightningModule) -> Any:
    """The cell's strategy. Raises ConfigError for what this host cannot do."""
    with refuse_as():
        return BUILDERS[cell.strategy.kind](cell.strategy, Setting(rank, module, cell))


def data_share(cell: CellConfig, rank: RankContext) -> DataShare:
    """The part of the data this rank feeds under the cell's strategy."""
    world = rank.world_size
    sizes = BatchSizes(cell.shard_batch_sizes(world))
    return DataShare(cell.strategy.data_shard(rank.rank, world), sizes)


def build_data(
    cell: CellConfig, rank: RankContext, module: pl.LightningModule, steps_per_batch: int = 1
) -> dict[str, Any]:
    """The arguments of ``Trainer.fit`` that carry the data, and ``test_dataloaders``.

    Raises ConfigError for data that cannot be read or that the model cannot train on.
    """
    dataset = instantiate("dataset", cell.dataset)
    if isinstance(dataset, OwnLoaders):
        dataset.take(module, cell.model.target)
    if isinstance(dataset, pl.LightningDataModule):
        if cell.test and not is_overridden("test_dataloader", dataset):
            raise ConfigError(NO_TEST.format(f"{cell.data_source.target} has no test_dataloader"))
        if cell.strategy.UNEVEN:
            raise ConfigError(
                f"dataset: found {cell.dataset.name}, which makes its own batches, with strategy="
                f"{cell.strategy.name}; allowed: a dataset whose batches scalewise shares out"
            )
        return {"datamodule": dataset}
    with refuse_as():
        training = getattr(dataset, "train", dataset)
        validation = getattr(dataset, "validation", None)
        check = getattr(getattr(module, "network", None), "check_data", None)
        if check is not None and hasattr(dataset, "describe"):
            check(dataset.describe())
    testing = getattr(dataset, "test", None)
    if cell.test and testing is None:
        raise ConfigError(NO_TEST.format(f"{cell.dataset.target} has no test set (.test)"))
    if not hasattr(training, "__getitem__") or not hasattr(training, "__len__"):
        raise ConfigError(
            f"dataset._target_: {cell.dataset.target} has no map-style training set; allowed: "
            "a torch Dataset, an object with .train and .validation, or a LightningDataModule"
        )
    strategy, world = cell.strategy, rank.world_size
    per_device = cell.per_device_batch_size(world)
    place = (strategy.data_shard(rank.rank, world), strategy.data_shards(world))
    data: dict[str, Any] = {}
    with refuse_as():
        sizes = BatchSizes(cell.shard_batch_sizes(world))
        sampler = GlobalBatchSampler(len(training), sizes, place[0], cell.seed, steps_per_batch)
        data["train_dataloaders"] = make_loader(training, sampler, cell.loader, rank.device.kind)
        for key, scored, is_wanted in (
            ("val_dataloaders", validation, cell.validation != "never"),
            ("test_dataloaders", testing, cell.test),
        ):
            if scored is not None and is_wanted:
                parts = ShardBatchSampler(len(scored), per_device, *place, strategy.SCORES_TOGETHER)
                data[key] = make_loader(scored, parts, cell.loader, rank.device.kind)
    return data


def check_test(cell: CellConfig, module: pl.LightningModule) -> None:
    """Refuse a test that the module does not know how to do. Raises ConfigError."""
    if cell.test and not is_overridden("test_step", module):
        raise ConfigError(NO_TEST.format(f"{cell.model.target} has no test_step"))
