"""Pipeline parallelism inside Lightning: torch's stages and schedules.

All ranks of a replica load its batch: the first needs the input, the last the target, and models
that mask need the input everywhere.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast

import pytorch_lightning as pl
import torch
from torch import Tensor, distributed, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from scalewise.models.contract import SplitsIntoStages, TrainableModel
from scalewise.models.stages import Stage, split
from scalewise.records import PipelineRecord
from scalewise.train.module import ExperimentModule
from scalewise.train.parallel.divided import DividedStrategy, move_rest, network_of
from scalewise.train.parallel.pipeline_steps import PipelineSteps
from scalewise.train.parallel.relay import Relay
from scalewise.train.parallel.replicas import Replicas
from scalewise.train.parallel.ties import Ties

if TYPE_CHECKING:
    from scalewise.train.strategies.base import Setting
    from scalewise.train.strategies.pipeline import PipelineConfig

_SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


class PipelineStrategy(DividedStrategy):
    """This rank's stage of the model, and its part in the schedule."""

    steps_class = PipelineSteps
    hidden: ClassVar[Mapping[str, str]] = {
        "exposed_comm_ms": (
            "activations and gradients pass between the stages all through a step; what a stage "
            "waits is in its phase `other`"
        ),
        "arrival": "the stages of a pipeline are ready one after another, as meant",
    }
    replicas: Replicas
    ties: Ties
    stage: Stage
    pipeline_record: PipelineRecord

    def __init__(self, config: PipelineConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        self._config = config
        self._stages = config.ranks_a_replica(setting.world_size)
        _check_model(setting.module, self._stages)

    def divide(self, module: pl.LightningModule) -> None:
        assert isinstance(module, ExperimentModule)
        network = module.network
        assert isinstance(network, SplitsIntoStages) and isinstance(network, nn.Module)
        self.replicas = replicas = Replicas.of_size(self._stages)
        stages = split(network.pipeline_units(), self._stages)
        self.stage = stages[replicas.place]
        self.ties = Ties(stages, replicas)
        _hollow(network, keep=self.stage)
        self.stage.to(self.root_device)
        move_rest(module, network, self.root_device)
        self._relay = Relay(replicas, self.root_device)
        self._loss_of: Callable[[Tensor, Tensor], Tensor] = cast(TrainableModel, network).loss
        self.pipeline_record = PipelineRecord(
            self._config.schedule, self._stages, replicas.place, self._config.microbatches
        )
        # Only the last stage of a replica sees outputs; the others add nothing to the metrics.
        warnings.filterwarnings("ignore", message=r"The ``compute`` method of metric .* was called")

    @property
    def is_last(self) -> bool:
        """Whether this rank has the loss."""
        return self.replicas.place == self._stages - 1

    def make_schedule(self, loss: Any) -> Any:
        """Torch's schedule over this rank's stage, with ``loss(output, target)`` at the end."""
        stage = PipelineStage(
            self.stage,
            self.replicas.place,
            self._stages,
            self.root_device,
            group=self.replicas.inside,
        )
        return stage, _SCHEDULES[self._config.schedule](
            stage, self._config.microbatches, loss_fn=loss
        )

    def loss_of(self, output: Tensor, target: Tensor) -> Tensor:
        """The network's loss over one microbatch."""
        return self._loss_of(output, target)

    def share_loss(self, losses: list[Tensor]) -> Tensor:
        """The mean over microbatches, which the last stage knows, on every rank of the replica."""
        loss = (
            torch.stack(losses).detach().float().mean()
            if self.is_last
            else torch.zeros((), device=self.root_device)
        )
        distributed.broadcast(loss, src=self.replicas.ranks[-1], group=self.replicas.inside)
        return loss

    def validation_step(self, *args: Any, **kwargs: Any) -> None:
        """The whole batch through the stages one after another: batches may differ in size."""
        module = self.lightning_module
        assert isinstance(module, ExperimentModule)
        x, target = args[0]
        with self.precision_plugin.val_step_context():
            output = self._relay.forward(self.stage, x)
            if output is not None:
                module.score(output, target)


def _check_model(module: pl.LightningModule, stages: int) -> None:
    network = network_of(module)
    if not isinstance(module, ExperimentModule) or not isinstance(network, SplitsIntoStages):
        raise ValueError(
            f"model: found {type(network).__name__} with strategy=pipeline; allowed: an nn.Module "
            "that says where it may be cut (a method pipeline_units()), or strategy=fsdp"
        )
    units = network.pipeline_units()
    if stages > len(units):
        raise ValueError(
            f"strategy.stages: found {stages} for a {type(network).__name__} of {len(units)} "
            f"units; allowed: at most {len(units)}"
        )
    held = {id(parameter) for unit in units for parameter in unit.module.parameters()}
    left_out = [name for name, p in network.named_parameters() if id(p) not in held]
    if left_out:
        raise ValueError(
            f"model: found {', '.join(left_out)} in no unit of {type(network).__name__}; allowed: "
            "pipeline_units() that hold every parameter of the model"
        )


def _hollow(network: nn.Module, keep: nn.Module) -> None:
    """Let go of all parameters and buffers but those of ``keep``; their shapes remain."""
    kept = {id(t) for t in (*keep.parameters(), *keep.buffers())}
    for part in network.modules():
        for name, parameter in part.named_parameters(recurse=False):
            if id(parameter) not in kept:
                hollow = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
                setattr(part, name, hollow)
        for name, buffer in part.named_buffers(recurse=False):
            if id(buffer) not in kept:
                setattr(part, name, buffer.to("meta"))


def without_outputs(schedule: Any) -> dict[str, bool]:
    """What tells ``schedule.step`` not to join the outputs, where this torch can be told."""
    known = "return_outputs" in inspect.signature(schedule.step).parameters
    return {"return_outputs": False} if known else {}
