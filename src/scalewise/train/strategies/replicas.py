"""Replicas without DDP around them: nothing is sent while gradients are computed."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytorch_lightning as pl
import torch
from pytorch_lightning.strategies import DDPStrategy
from torch import Tensor

from scalewise.config import LocalSgdConfig, ProcessGroupConfig
from scalewise.records import CommunicationRecord
from scalewise.train.strategies.ddp import Setting, group_arguments
from scalewise.train.torch_internals import copy_all


class UnwrappedReplicas(DDPStrategy):
    """The bare module on each rank; the ranks send nothing to one another while they train."""

    ends_alike = False
    """Whether every rank has the same parameters after training."""

    def __init__(self, config: ProcessGroupConfig, setting: Setting) -> None:
        super().__init__(**group_arguments(config, setting))

    def configure_ddp(self) -> None:
        """Wrap nothing."""

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        yield  # there is no reduction in a backward that could be put off

    def communication(self, timed_steps: int) -> CommunicationRecord | None:
        """Payloads of the last ``timed_steps`` optimizer steps; None where nothing was sent."""
        return None


class _Averaging(NamedTuple):
    step: int
    payload_bytes: int
    begin: Any
    """Seconds of the host's clock, or an event of a GPU, not waited for before training is over."""
    end: Any

    def milliseconds(self) -> float:
        if isinstance(self.begin, float):
            return float(self.end - self.begin) * 1e3
        self.end.synchronize()
        return float(self.begin.elapsed_time(self.end))


def _moment(device: torch.device) -> Any:
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


class LocalSgd(UnwrappedReplicas):
    """Parameters (and floating-point buffers) are averaged every ``period`` optimizer steps.

    What is scored is the mean of the replicas: during training each of them goes on from its
    own parameters afterwards, at the end all keep the mean.
    """

    ends_alike = True

    def __init__(self, config: LocalSgdConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        self.period = config.period
        self._steps = 0
        self._averagings: list[_Averaging] = []
        self._own: list[Tensor] | None = None

    def configure_ddp(self) -> None:
        # Alike at the start, as DDP makes them.
        for tensor in _averaged(self.lightning_module):
            torch.distributed.broadcast(tensor, src=0)

    def setup_optimizers(self, trainer: pl.Trainer) -> None:
        super().setup_optimizers(trainer)
        # The last of several steps last, and with it the step is over.
        self.optimizers[-1].register_step_post_hook(self._after_step)

    def _after_step(self, *_: Any) -> None:
        self._steps += 1
        if self._steps % self.period == 0:
            begin = _moment(self.root_device)
            payload = average(_averaged(self.lightning_module), self.world_size)
            end = _moment(self.root_device)
            self._averagings.append(_Averaging(self._steps, payload, begin, end))

    def on_validation_start(self) -> None:
        tensors = _averaged(self.lightning_module)
        self._own = [tensor.clone() for tensor in tensors]
        average(tensors, self.world_size)

    def on_validation_end(self) -> None:
        if self._own is not None:
            copy_all(_averaged(self.lightning_module), self._own)
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


def average(tensors: Sequence[Tensor], world_size: int) -> int:
    """Replace each tensor by its mean over the ranks, in one all-reduce for each dtype.

    Returns the bytes handed to the collectives.
    """
    payload = 0
    with torch.no_grad():
        by_dtype = sorted(tensors, key=lambda t: str(t.dtype))
        for _, of_dtype in itertools.groupby(by_dtype, key=lambda t: t.dtype):
            alike = list(of_dtype)
            flat = torch.cat([tensor.reshape(-1) for tensor in alike])
            torch.distributed.all_reduce(flat)
            flat.div_(world_size)
            parts = torch.split(flat, [tensor.numel() for tensor in alike])
            copy_all(alike, [part.view_as(t) for part, t in zip(parts, alike, strict=True)])
            payload += flat.nbytes
    return payload


def _averaged(module: Any) -> list[Tensor]:
    """Tensors that are averaged over the ranks: trained parameters, and statistics of batches."""
    parameters = [p.detach() for p in module.parameters() if p.requires_grad]
    return parameters + [b for b in module.buffers() if b.is_floating_point()]
