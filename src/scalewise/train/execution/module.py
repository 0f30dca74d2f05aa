"""The LightningModule of a cell: a network with a loss, an optimizer and metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torchmetrics import MeanMetric, MetricCollection

from scalewise.config import ConfigError
from scalewise.models import without_loss
from scalewise.train.execution.fast_loop import CheapHookNames, LeanSteps
from scalewise.train.recording import count_samples

OptimizerFactory = Callable[[Iterable[tuple[str, nn.Parameter]]], torch.optim.Optimizer]
"""From named parameters: some optimizers treat them by name, and all of torch's accept names."""
ScheduleFactory = Callable[[torch.optim.Optimizer, pl.Trainer], dict[str, Any]]
"""A schedule of learning rates in Lightning's form, for the run of a Trainer."""


class ExperimentModule(CheapHookNames, pl.LightningModule):
    """Trains any ``nn.Module`` that has ``forward(x)`` and ``loss(output, target)``.

    Nothing is logged in ``training_step``: Lightning's ``log`` costs more than a small model's
    step. The loss is read from the step's output, late, by the recording callbacks.
    """

    def __init__(
        self,
        network: nn.Module,
        optimizer: OptimizerFactory,
        schedule: ScheduleFactory | None = None,
    ) -> None:
        super().__init__()
        why = without_loss(network)
        if why is not None:
            raise ValueError(f"_target_: found {type(network).__name__}, {why}")
        self.network = network
        self._optimizer = optimizer
        self._schedule = schedule
        self._loss: Callable[[Tensor, Tensor], Tensor] | None = getattr(network, "loss", None)
        self.validation_loss = MeanMetric()
        make_metrics = getattr(network, "metrics", None)
        self.validation_metrics = (make_metrics and make_metrics()) or MetricCollection({})

    def forward(self, x: Tensor) -> Any:
        return self.network(x)

    def transfer_batch_to_device(
        self, batch: tuple[Tensor, Tensor], device: torch.device, dataloader_idx: int
    ) -> tuple[Tensor, Tensor]:
        # Lightning's own walks through any structure a batch might have.
        x, target = batch
        return x.to(device, non_blocking=True), target.to(device, non_blocking=True)

    def objective(self, x: Tensor, target: Tensor) -> Tensor:
        """The loss of a batch: what ``execution=compile`` compiles."""
        assert self._loss is not None
        return self._loss(self.network(x), target)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, target = batch
        return self.objective(x, target)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        x, target = batch
        self.score(self.network(x), target)

    def score(self, output: Tensor, target: Tensor) -> None:
        """Take the outputs for a batch into the validation loss and metrics."""
        assert self._loss is not None
        # Weighted by samples, so that a short last batch counts for what it is.
        self.validation_loss.update(self._loss(output, target), weight=len(target))
        self.validation_metrics.update(output, target)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.validation_step(batch, batch_idx)

    def on_validation_epoch_end(self) -> None:
        self._log_scores("val")

    def on_test_epoch_end(self) -> None:
        self._log_scores("test")

    def _log_scores(self, of: str) -> None:
        # compute() gathers the states of all ranks; every rank then holds the same values.
        scores = {"loss": self.validation_loss.compute(), **self.validation_metrics.compute()}
        self.validation_loss.reset()
        self.validation_metrics.reset()
        self.log_dict({f"{of}_{name}": score for name, score in scores.items()}, sync_dist=True)

    def configure_optimizers(self) -> Any:
        optimizer = self._optimizer(held_parameters(self.network))
        if self._schedule is None:
            return optimizer
        return {"optimizer": optimizer, "lr_scheduler": self._schedule(optimizer, self.trainer)}


class KeywordModule(ExperimentModule):
    """Trains a network in Hugging Face's form: ``forward(**batch)`` returns its loss."""

    def transfer_batch_to_device(
        self, batch: Any, device: torch.device, dataloader_idx: int
    ) -> Any:
        return pl.LightningModule.transfer_batch_to_device(self, batch, device, dataloader_idx)

    def objective(self, **batch: Any) -> Tensor:  # type: ignore[override]
        """The loss that the network says of a batch. Raises ConfigError where it says none."""
        loss = getattr(self.network(**batch), "loss", None)
        if not isinstance(loss, Tensor):
            raise ConfigError(
                f"model._target_: forward() of {type(self.network).__name__} returned no .loss for "
                f"a batch of {', '.join(batch)}; allowed: batches with what it needs (labels?)"
            )
        return loss

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.objective(**_mapping(batch, self.network))

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        loss = self.objective(**_mapping(batch, self.network))
        self.validation_loss.update(loss, weight=count_samples(batch) or 1)


def _mapping(batch: Any, network: nn.Module) -> Mapping[str, Any]:
    """``batch``, whose entries are arguments. Raises ConfigError for one without names."""
    if isinstance(batch, Mapping):
        return batch
    raise ConfigError(
        f"dataset: found batches of {type(batch).__name__} for {type(network).__name__}, whose "
        "forward takes names; allowed: samples that are mappings, {'input_ids': ..., 'labels': ...}"
    )


def held_parameters(network: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Named parameters of which this rank holds something, for the optimizer."""
    return [(name, p) for name, p in network.named_parameters() if not p.is_meta]


class OperationModule(CheapHookNames, pl.LightningModule):
    """Runs an operation once a step, forward only: nothing is learnt, optimized or scored."""

    def __init__(self, operation: nn.Module) -> None:
        super().__init__()
        self.network = operation

    def transfer_batch_to_device(
        self, batch: Any, device: torch.device, dataloader_idx: int
    ) -> Any:
        if isinstance(batch, Tensor):
            return batch.to(device, non_blocking=True)
        return tuple(self.transfer_batch_to_device(part, device, 0) for part in batch)

    @torch.no_grad()
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        result = self.network(batch)
        assert isinstance(result, Tensor)
        return result

    def configure_optimizers(self) -> None:
        return None

    def on_fit_start(self) -> None:
        # Lightning puts a dummy in the optimizer's place; the records are to say that none ran.
        self.trainer.strategy.optimizers = []


class ForwardSteps(LeanSteps):
    """A step is one forward pass. It counts as Lightning counts optimizer steps."""

    def step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        """The operation on one batch that is on the device. Its result is not kept."""
        progress = self.optim_progress.optimizer.step
        progress.increment_ready()
        self.trainer.strategy.training_step(batch, batch_idx)
        progress.increment_completed()
        return {}
