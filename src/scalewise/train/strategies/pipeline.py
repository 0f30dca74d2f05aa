"""Pipeline parallelism inside Lightning: torch's stages and schedules.

All ranks load the batch: the first needs the input, the last the target, and models that mask need
the input everywhere.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, cast

import pytorch_lightning as pl
import torch
from torch import Tensor, distributed, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from scalewise.config import PipelineConfig
from scalewise.models import SplitsIntoStages, Stage, TrainableModel, split
from scalewise.records import PipelineRecord
from scalewise.train.execution import ExperimentModule, LeanSteps
from scalewise.train.recording import CellRecorder, Mark
from scalewise.train.strategies.data_parallel import Setting
from scalewise.train.strategies.model_parallel import DividedStrategy, move_rest, network_of


class PipelineSteps(LeanSteps):
    """Each forward and backward of a microbatch is timed as a part of its own.

    What passes between two parts counts as ``other``: waiting for the neighbouring stages, unhidden
    transfers and bookkeeping: the idle time to hold against the schedule's bubble.
    """

    def __init__(self, trainer: pl.Trainer, recorder: CellRecorder) -> None:
        super().__init__(trainer, recorder)
        assert isinstance(trainer.strategy, PipelineStrategy)
        self._strategy = trainer.strategy
        self._schedule: Any = None
        self._arguments: dict[str, Any] = {}

    def step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        trainer, strategy = self.trainer, self._strategy
        optimizer = trainer.optimizers[0]
        optimizer.zero_grad()
        losses = self._run_schedule(*batch)
        strategy.ties.sum_gradients()
        loss = strategy.share_loss(losses)
        self._recorder.steps.end_parts()
        self.optimize(trainer.lightning_module, optimizer)
        return {"loss": loss}

    def clip(self, module: pl.LightningModule) -> None:
        if self.trainer.gradient_clip_val is not None:
            strategy = self._strategy
            strategy.ties.clip(strategy.stage, float(self.trainer.gradient_clip_val))

    def _run_schedule(self, x: Tensor, target: Tensor) -> list[Tensor]:
        strategy = self._strategy
        if self._schedule is None:
            self._make_schedule(strategy)
        losses: list[Tensor] = []
        first = (x,) if strategy.place == 0 else ()
        last = {"target": target, "losses": losses} if strategy.is_last else {}
        with strategy.precision_plugin.train_step_context():
            self._schedule.step(*first, x=x, **last, **self._arguments)
        return losses

    def _make_schedule(self, strategy: PipelineStrategy) -> None:
        loss = self._timed(strategy.loss_of, Mark.FORWARD_BEGIN, Mark.FORWARD_END)
        stage, self._schedule = strategy.make_schedule(loss)
        for name, begin, end in (
            ("forward_one_chunk", Mark.FORWARD_BEGIN, Mark.FORWARD_END),
            ("backward_one_chunk", Mark.BACKWARD_BEGIN, Mark.BACKWARD_END),
        ):
            setattr(stage, name, self._timed(getattr(stage, name), begin, end))
        # No outputs are joined, where this torch can leave it.
        if "return_outputs" in inspect.signature(self._schedule.step).parameters:
            self._arguments["return_outputs"] = False

    def _timed(self, inner: Callable[..., Any], begin: Mark, end: Mark) -> Callable[..., Any]:
        steps = self._recorder.steps

        def timed(*args: Any, **kwargs: Any) -> Any:
            steps.begin_part(begin)
            result = inner(*args, **kwargs)
            steps.mark(end)
            return result

        return timed


class Ties:
    """Parameters that several stages share, such as a tied embedding.

    Their copies stay equal because their gradients are summed every step. ``stages`` are all of
    the model's, before any is let go.
    """

    def __init__(self, stages: Sequence[nn.Module]) -> None:
        rank = distributed.get_rank()
        holders: dict[int, list[int]] = {}
        parameters: dict[int, nn.Parameter] = {}
        for place, stage in enumerate(stages):
            for parameter in stage.parameters():
                holders.setdefault(id(parameter), []).append(place)
                parameters[id(parameter)] = parameter
        self._shared: list[tuple[nn.Parameter, distributed.ProcessGroup]] = []
        self._counted_elsewhere: set[int] = set()
        group_of = functools.cache(distributed.new_group)
        for key, places in holders.items():
            if len(places) > 1:
                group = group_of(tuple(places))  # every rank makes every group, in one order
                if rank in places:
                    self._shared.append((parameters[key], group))
                if rank in places[1:]:
                    self._counted_elsewhere.add(key)

    def sum_gradients(self) -> None:
        for parameter, group in self._shared:
            if parameter.grad is not None:
                distributed.all_reduce(parameter.grad, group=group)

    def clip(self, stage: nn.Module, max_norm: float) -> None:
        """Scale this stage's gradients so that the norm over all stages is at most ``max_norm``.

        Of a shared parameter one copy counts.
        """
        held = list(stage.parameters())
        counted = [p for p in held if id(p) not in self._counted_elsewhere]
        norm = nn.utils.get_total_norm([p.grad for p in counted if p.grad is not None])
        squares = norm.square().to(held[0].device)
        distributed.all_reduce(squares)
        nn.utils.clip_grads_with_norm_(held, max_norm, squares.sqrt())


_SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


class PipelineStrategy(DividedStrategy):
    """This rank's stage of the model, and its part in the schedule.

    Raises ValueError for a model that cannot be cut into as many stages.
    """

    steps_class = PipelineSteps  # see ``fast_loop.trim``
    hidden: ClassVar[Mapping[str, str]] = {
        "exposed_comm_ms": (
            "activations and gradients pass between the stages all through a step; what a stage "
            "waits is in its phase `other`"
        ),
        "arrival": "the stages of a pipeline are ready one after another, as meant",
    }
    ties: Ties
    stage: Stage
    pipeline_record: PipelineRecord
    loss_of: Callable[[Tensor, Tensor], Tensor]
    """The network's loss over one microbatch."""

    def __init__(self, config: PipelineConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        self._config = config
        self.place, self._stages = setting.rank.rank, setting.rank.world_size
        _check_model(setting.module, self._stages)

    def divide(self, module: pl.LightningModule) -> None:
        assert isinstance(module, ExperimentModule)
        network = module.network
        assert isinstance(network, SplitsIntoStages) and isinstance(network, nn.Module)
        stages = split(network.pipeline_units(), self._stages)
        self.stage = stages[self.place]
        self.ties = Ties(stages)
        _hollow(network, keep=self.stage)
        self.stage.to(self.root_device)
        move_rest(module, network, self.root_device)
        self.loss_of = cast(TrainableModel, network).loss
        self.pipeline_record = PipelineRecord(
            self._config.schedule, self._stages, self.place, self._config.microbatches
        )
        # Only the last stage sees outputs; the others add nothing to the metrics.
        warnings.filterwarnings("ignore", message=r"The ``compute`` method of metric .* was called")

    @property
    def is_last(self) -> bool:
        return self.place == self._stages - 1

    def make_schedule(self, loss: Any) -> Any:
        """Torch's schedule over this rank's stage, with ``loss(output, target)`` at the end."""
        stage = PipelineStage(self.stage, self.place, self._stages, self.root_device)
        return stage, _SCHEDULES[self._config.schedule](
            stage, self._config.microbatches, loss_fn=loss
        )

    def share_loss(self, losses: list[Tensor]) -> Tensor:
        """The mean over microbatches, which the last stage knows, on every rank."""
        loss = (
            torch.stack(losses).detach().float().mean()
            if self.is_last
            else torch.zeros((), device=self.root_device)
        )
        distributed.broadcast(loss, src=self._stages - 1)
        return loss

    def validation_step(self, *args: Any, **kwargs: Any) -> None:
        """The whole batch through the stages one after another: batches may differ in size."""
        module = self.lightning_module
        assert isinstance(module, ExperimentModule)
        x, target = args[0]
        with self.precision_plugin.val_step_context():
            output = self.stage(x if self.place == 0 else self._receive(self.place - 1), x)
            if self.is_last:
                module.score(output, target)
            else:
                self._send(output, self.place + 1)

    def _send(self, output: Tensor, to: int) -> None:
        """Its shape goes in front, for which a schedule has no room."""
        described = [(output.dtype, tuple(output.shape))]
        distributed.send_object_list(described, to, device=self.root_device)
        distributed.send(output.contiguous(), to)

    def _receive(self, source: int) -> Tensor:
        described: list[Any] = [None]
        distributed.recv_object_list(described, source, device=self.root_device)
        dtype, shape = described[0]
        hidden = torch.empty(shape, dtype=dtype, device=self.root_device)
        distributed.recv(hidden, source)
        return hidden


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
            f"strategy.devices: found {stages} for a {type(network).__name__} of {len(units)} "
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
