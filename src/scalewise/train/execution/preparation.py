"""On the way to a captured step: a few eager ones, then a capture that all ranks agree on."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from scalewise.train.execution.capturable import HostState, known_obstacle, make_capturable
from scalewise.train.execution.captured import (
    Batch,
    CaptureDevice,
    CapturedStep,
    CaptureError,
    StepFunction,
)

if TYPE_CHECKING:
    from scalewise.train.callbacks.recorder import CellRecorder

NOT_SEEN_INSIDE = (
    "a replayed step is one launch, so the moments inside it are not seen: forward, backward, "
    "communication and optimizer are measured with execution=eager"
)

EagerStep = Callable[[], dict[str, Any]]
"""A training step with all its marks; gives what Lightning calls its output, the loss in it."""


class Preparation:
    """Ends with a captured step, or with the reason why there is none.

    Args:
        trainer: of this rank.
        recorder: told what replays hide, and left out of the capture.
        eager_steps: steps before the capture.
        device: captures.
    """

    def __init__(
        self, trainer: pl.Trainer, recorder: CellRecorder, eager_steps: int, device: CaptureDevice
    ) -> None:
        self.captured: CapturedStep | None = None
        self.fell_back_because: str | None = None
        self.seconds = 0.0
        self.steps = 0
        self._trainer = trainer
        self._recorder = recorder
        self._eager_steps = eager_steps
        self._device = device

    def begin(self) -> None:
        """Before the first step: the optimizer is made ready, and what is known is considered."""
        trainer = self._trainer
        reason = known_obstacle(trainer, trainer.lightning_module, self._device.kind)
        if reason is None:
            schedules = len(trainer.lr_scheduler_configs)
            reason = make_capturable(trainer.optimizers[0], schedules)
        self._agree(reason)

    @property
    def goes_on(self) -> bool:
        """Whether the next step is one of these."""
        return self.captured is None and self.fell_back_because is None

    def step(self, eager: EagerStep, whole: StepFunction, part: Batch) -> dict[str, Any]:
        """One more ``eager`` step; the last of them also captures ``whole`` on ``part``."""
        began = time.perf_counter()
        self.steps += 1
        if self.steps == self._eager_steps:
            output = self._watched(eager)
            self._count_gradients()
            if self.fell_back_because is None:
                self._capture(whole, part)
        else:
            output = eager()
        self.seconds += time.perf_counter() - began
        return output

    def _watched(self, eager: EagerStep) -> dict[str, Any]:
        """An eager step that shows whether it waits for the device or changes what Python keeps."""
        before = HostState(self._trainer.lightning_module, self._trainer.optimizers[0])
        output: dict[str, Any] = {}

        def step() -> Tensor:
            output.update(eager())
            loss: Tensor = output["loss"]
            return loss

        _, reason = self._device.watch(step)
        self._agree(reason or before.change())
        return output

    def _capture(self, whole: StepFunction, part: Batch) -> None:
        captured, reason = None, None
        try:
            with self._recorder.steps.unseen():
                captured = CapturedStep(whole, part, self._device.graph())
        except CaptureError as error:
            reason = f"the capture failed: {error}"
        self._agree(reason)
        if self.fell_back_because is None:
            self.captured = captured
            for name in ("phases", "arrival"):
                self._recorder.steps.missing[name] = NOT_SEEN_INSIDE

    def _agree(self, reason: str | None) -> None:
        """All ranks replay or none does: a graph holds its half of every all-reduce."""
        trainer = self._trainer
        reasons: list[str | None] = [reason]
        if trainer.world_size > 1:
            reasons = [None] * trainer.world_size
            torch.distributed.all_gather_object(reasons, reason)
        for rank, found in enumerate(reasons):
            if found is not None:
                where = f"on rank {rank}: " if any(r != found for r in reasons) else ""
                self._fall_back(where + found)
                return

    def _fall_back(self, reason: str) -> None:
        self.fell_back_because = reason
        if self._trainer.world_size > 1:
            self._recorder.steps.listen(self._trainer)
        if self._trainer.is_global_zero:
            pl.utilities.rank_zero_warn(
                f"execution=cudagraph: the steps run eagerly, because {reason}"
            )

    def _count_gradients(self) -> None:
        """Bytes and buckets that DDP reduces: no hook of ours listens inside a graph."""
        model, steps = self._trainer.strategy.model, self._recorder.steps
        if isinstance(model, DistributedDataParallel):
            seen = model._get_ddp_logging_data()  # type: ignore[no-untyped-call]
            sizes = str(seen.get("rebuilt_bucket_sizes", ""))
            buckets = [int(size) for size in sizes.split(",") if size.strip()]
            if buckets:
                steps.traffic.bucket_bytes, steps.traffic.buckets = sum(buckets), len(buckets)
