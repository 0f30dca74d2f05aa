"""Local SGD: each device trains alone for K steps, then all take the mean of their parameters.

from pydantic import PositiveInt

Stich 2019, "Local SGD Converges Fast and Communicates Little" (arXiv:1805.09767). Between two
averagings the replicas differ by design; momenta of the optimizer are never exchanged.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import PositiveInt

from scalewise.records import CommunicationRecord
from scalewise.train.strategies.process_group import ProcessGroupConfig, group_arguments
from scalewise.train.strategies.replicas import unwrapped_replicas

if TYPE_CHECKING:
    import torch
    from pytorch_lightning.strategies import DDPStrategy

    from scalewise.train.strategies.base import Setting


@dataclass(frozen=True)
class LocalSgdConfig(ProcessGroupConfig):
    """``strategy=local_sgd``."""

    KIND: ClassVar[str] = "local_sgd"
    EXECUTIONS: ClassVar[tuple[str, ...] | None] = ("eager", "compile")
    PRECISIONS: ClassVar[tuple[str, ...] | None] = ("32-true", "bf16-mixed")
    """Not fp16: its loss scaling skips steps on one rank and not on another, and the two would
    wait for each other in different averagings."""

    period: PositiveInt = 8
    """Optimizer steps from one averaging to the next."""


def build_local_sgd(config: LocalSgdConfig, setting: Setting) -> DDPStrategy:
    """Replicas that take the mean of their parameters every ``period`` steps."""
    arguments = group_arguments(config, setting)
    built: DDPStrategy = _local_sgd()(period=config.period, **arguments)
    return built


@dataclass(frozen=True)
class _Averaging:
    step: int
    payload_bytes: int
    milliseconds: Callable[[], float]
    """Asked when training is over: a GPU is not waited for before."""


@functools.cache
def _local_sgd() -> type[Any]:
    import pytorch_lightning as pl
    import torch
    from torch.nn import Module

    base: Any = unwrapped_replicas()

    class LocalSgd(base):  # type: ignore[misc]
        """Parameters (and floating-point buffers) are averaged every ``period`` optimizer steps.

        What is scored is the mean of the replicas: during training each of them goes on from its
        own parameters afterwards, at the end all keep the mean.
        """

        def __init__(self, period: int, **arguments: Any) -> None:
            super().__init__(**arguments)
            self.period = period
            self._steps = 0
            self._averagings: list[_Averaging] = []
            self._own: list[torch.Tensor] | None = None

        def _setup_model(self, model: Module) -> Any:
            # Alike at the start, as DDP makes them.
            for tensor in _averaged(model):
                torch.distributed.broadcast(tensor, src=0)
            return model

        def setup_optimizers(self, trainer: pl.Trainer) -> None:
            super().setup_optimizers(trainer)
            # The last of several steps last, and with it the step is over.
            self.optimizers[-1].register_step_post_hook(self._after_step)

        def _after_step(self, *_: Any) -> None:
            self._steps += 1
            if self._steps % self.period == 0:
                self._averagings.append(self._average())

        def _average(self) -> _Averaging:
            tensors = _averaged(self.lightning_module)
            lasted = _stopwatch(self.root_device)
            payload = average(tensors, self.world_size)
            return _Averaging(self._steps, payload, lasted())

        def on_validation_start(self) -> None:
            tensors = _averaged(self.lightning_module)
            self._own = [tensor.clone() for tensor in tensors]
            average(tensors, self.world_size)

        def on_validation_end(self) -> None:
            if self._own is not None:
                torch._foreach_copy_(_averaged(self.lightning_module), self._own)
                self._own = None

        def on_train_end(self) -> None:
            average(_averaged(self.lightning_module), self.world_size)

        def communication(self, timed_steps: int) -> CommunicationRecord | None:
            timed = [a for a in self._averagings if a.step > self._steps - timed_steps]
            if not timed:
                return None
            return CommunicationRecord(
                what="parameters",
                rounds_per_step=len(timed) / timed_steps,
                payload_bytes_per_step=sum(a.payload_bytes for a in timed) / timed_steps,
                ms_per_step=sum(a.milliseconds() for a in timed) / timed_steps,
            )

    return LocalSgd


def average(tensors: Sequence[torch.Tensor], world_size: int) -> int:
    """Replace each tensor by its mean over the ranks; one all-reduce for each dtype.

    Returns the bytes handed to the collectives.
    """
    import torch

    payload = 0
    with torch.no_grad():
        by_dtype = sorted(tensors, key=lambda t: str(t.dtype))
        for _, group in itertools.groupby(by_dtype, key=lambda t: t.dtype):
            alike = list(group)
            flat = torch.cat([tensor.reshape(-1) for tensor in alike])
            torch.distributed.all_reduce(flat)
            flat.div_(world_size)
            parts = torch.split(flat, [tensor.numel() for tensor in alike])
            shaped = [part.view_as(t) for part, t in zip(parts, alike, strict=True)]
            torch._foreach_copy_(alike, shaped)
            payload += flat.nbytes
    return payload


def _averaged(module: Any) -> list[torch.Tensor]:
    """What the ranks have the mean of: trained parameters, and statistics of batches."""
    parameters = [p.detach() for p in module.parameters() if p.requires_grad]
    return parameters + [b for b in module.buffers() if b.is_floating_point()]


def _stopwatch(device: torch.device) -> Callable[[], Callable[[], float]]:
    """Starts now; call it to stop, and what that returns for the time in ms."""
    import torch

    if device.type != "cuda":
        begin_s = time.perf_counter()

        def stop() -> Callable[[], float]:
            took_ms = (time.perf_counter() - begin_s) * 1e3
            return lambda: took_ms

        return stop
    begin = torch.cuda.Event(enable_timing=True)
    begin.record()

    def stop_on_device() -> Callable[[], float]:
        end = torch.cuda.Event(enable_timing=True)
        end.record()

        def milliseconds() -> float:
            end.synchronize()
            return float(begin.elapsed_time(end))

        return milliseconds

    return stop_on_device
