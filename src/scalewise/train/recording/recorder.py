"""All records of one rank of a cell."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor

from scalewise.config import DEFAULT_PROFILE, ProfileConfig
from scalewise.host import CoreUseMeter, RunQueue
from scalewise.records import (
    CellFolder,
    DeviceInfo,
    EarlyStop,
    ExecutionRecord,
    HeartbeatWriter,
    KeptCheckpoint,
    LengthRecord,
    RankSummary,
)
from scalewise.train.recording.background import BackgroundDrain
from scalewise.train.recording.callbacks import CallbackTimes, early_stop, kept_checkpoints
from scalewise.train.recording.metrics import MetricsRecorder
from scalewise.train.recording.profiler import ProfiledSteps
from scalewise.train.recording.shards import OWN_SHARE, DataShare, ShardRecorder
from scalewise.train.recording.step_phases import Mark, Replays
from scalewise.train.recording.step_timer import StepTimer, loss_of
from scalewise.train.recording.summary import (
    class_names,
    counted,
    declared_flops,
    holds_replica,
    host_figures,
    loader_batch_size,
    parameter_fingerprint,
    summarise,
)


class CellRecorder(pl.Callback):
    """Step times, metrics, shards, heartbeat and summary of this rank, as one callback.

    It has to come before other callbacks: what they take then counts as ``other``. Its parts act
    in their order, the step timer first. Call :meth:`close` when everything that belongs to the
    cell has run.

    Beside Lightning, ``execution/fast_loop.py`` and ``strategies/pipeline.py`` call its hooks. Of a
    replayed CUDA graph ``execution/replay.py`` names in ``steps.missing`` what is not seen.
    """

    def __init__(
        self, folder: CellFolder, device: DeviceInfo, warmup_steps: int = 0,
        log_every_n_steps: int = 10, data: DataShare = OWN_SHARE,
        profile: ProfileConfig = DEFAULT_PROFILE,
    ) -> None:  # fmt: skip
        self.folder = folder
        self.device = device
        self.steps = StepTimer(folder, warmup_steps, profile)
        self.profiled = ProfiledSteps(folder, warmup_steps, profile) if profile.profiles else None
        """Acts between two steps."""
        self.metrics = MetricsRecorder(folder, self.steps, log_every_n_steps, data)
        self.shards = ShardRecorder(folder, self.steps, data.shard)
        self.execution: Callable[[], ExecutionRecord] | None = None
        """Asked at the end how the steps were really executed."""
        self.look: Callable[[], None] | None = None
        """Called from the recording thread as long as training goes on."""
        self.length: Callable[[], LengthRecord] | None = None
        """Asked at the end how long the run was to be, where its steps were not counted before."""
        self.callbacks = CallbackTimes()
        self._stopped: EarlyStop | None = None
        self._kept: tuple[KeptCheckpoint, ...] = ()
        self.brings_optimizer = False
        """Whether the module builds its own, so that the configuration's is not used."""
        self._run_queue = RunQueue()
        self._core_meter = CoreUseMeter()
        self._host_figures: dict[str, Any] = {}
        self._before: tuple[float, float] | None = None  # fingerprint before the first step
        self._ended_epoch: int | None = None
        """The epoch whose metrics are still to be recorded."""
        self._heartbeat: HeartbeatWriter | None = None
        self._background: BackgroundDrain | None = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if stage == "fit":
            self.shards.setup(trainer)
        if self._heartbeat is None:
            self._heartbeat = HeartbeatWriter(self.folder.heartbeat_path(trainer.global_rank))

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._before = _fingerprint(trainer, pl_module)
        self.metrics.open(trainer.global_rank, trainer.strategy.root_device)
        self.steps.begin(trainer, pl_module)
        self._background = BackgroundDrain(
            [self.steps.clock.drain, self.metrics.drain],
            device=trainer.strategy.root_device,
            look=self.look,
        )
        assert self._heartbeat is not None
        planned = planned_steps(trainer)
        if planned is not None:
            planned -= trainer.global_step  # those in a checkpoint of the user's
        self._heartbeat.begin(planned)
        self.metrics.begin(trainer)
        self._run_queue.begin(0)
        self._core_meter.begin()
        if self.profiled is not None:
            self.profiled.on_step(trainer, 0)

    def on_before_backward(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: torch.Tensor
    ) -> None:
        if self.steps.clock.divides:
            self.steps.clock.begin_backward(not pl_module.automatic_optimization)

    def on_after_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.steps.clock.divides:
            self.steps.mark(Mark.BACKWARD_END)
        self.steps.gradients.after_backward()

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        if self.steps.clock.divides:
            self.steps.clock.begin_optimizer(not pl_module.automatic_optimization)
        self.metrics.before_optimizer(trainer)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any,
        batch_idx: int,
    ) -> None:  # fmt: skip
        loss = loss_of(outputs)
        self.steps.end_batch(trainer, loss is not None, batch, batch_idx)
        self.metrics.end_batch(trainer, loss)
        if self.callbacks.on and not self.steps.inside_step:
            self.callbacks.end_step(self.steps.steps > self.steps.warmup_steps)
        self._look_around(trainer, self.steps.steps)

    def on_replays(
        self, trainer: pl.Trainer, replays: Replays, samples: int, losses: Mapping[int, Tensor]
    ) -> None:
        """Several steps at once, in place of ``on_train_batch_end`` for each.

        ``samples`` were fed in each; ``losses`` are those that are read, see the metrics.
        """
        before = self.steps.steps
        self.steps.finish_replays(replays, trainer.current_epoch, samples)
        self.metrics.on_replays(trainer, losses)
        self._look_around(trainer, before)

    def _look_around(self, trainer: pl.Trainer, before: int) -> None:
        """After replayed steps, with their count ``before``; after a batch, with the one now."""
        assert self._heartbeat is not None and self._background is not None
        steps, warmup_steps = self.steps.steps, self.steps.warmup_steps
        self._heartbeat.beat(steps, self.steps.samples)
        self._background.check()
        if before < warmup_steps:
            self._core_meter.begin()  # before warm-up ends: it takes too long for a timed step
        if before < warmup_steps <= steps or steps == warmup_steps:
            self._run_queue.begin(steps)
        if self.profiled is not None:
            self.profiled.on_step(trainer, steps)

    def plan_steps(self, steps: int) -> None:
        """Training means to take so many steps in all, which was not known when it began."""
        assert self._heartbeat is not None
        self._heartbeat.plan(steps)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.shards.end_epoch()
        # The module and the callbacks after this one log in this hook, too.
        self._ended_epoch = trainer.current_epoch

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._ended_epoch is not None:
            self.metrics.append_logged(trainer, self._ended_epoch)
            self._ended_epoch = None

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.on_train_epoch_start(trainer, pl_module)
        self._host_figures = host_figures(self._core_meter, self._run_queue, self.steps)
        if self.profiled is not None:
            self.profiled.end(trainer)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if stage == "fit":  # a test may load a checkpoint, and with it what callbacks knew then
            self._stopped = early_stop(trainer)
            self._kept = kept_checkpoints(trainer, self.folder.path, self.steps.missing)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.sanity_checking:
            self.metrics.append_logged(trainer)
            self.callbacks.restart_step()
            self.steps.end_validation()
        self.on_validation_batch_end(trainer)

    def on_validation_batch_end(self, trainer: pl.Trainer, *args: Any, **kwargs: Any) -> None:
        # Scoring is progress too: without a beat a long validation would look like a hang.
        if self._heartbeat is not None:
            self._heartbeat.beat(self.steps.steps, self.steps.samples)

    on_test_batch_end = on_validation_batch_end

    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.metrics.append_logged(trainer)

    def close(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> RankSummary:
        """Write what is left and the summary of this rank, and return it."""
        if self._background is not None:
            self._background.stop()
        self.metrics.drain(wait=True)
        self.shards.save(trainer.global_rank)
        summary = self._summarise(trainer, pl_module)
        self.folder.save_rank(summary)
        self._close_files()
        return summary

    def abandon(self) -> None:
        """Keep what was recorded of a fit that an error ended: it has no summary."""
        if self._background is not None:
            self._background.abandon()
        self._close_files()

    def _close_files(self) -> None:
        self.steps.close()
        self.metrics.close()
        if self._heartbeat is not None:
            self._heartbeat.close()

    def _summarise(self, trainer: pl.Trainer, module: pl.LightningModule) -> RankSummary:
        steps, strategy = self.steps, trainer.strategy
        communication = getattr(strategy, "communication", steps.gradients.record)
        after = _fingerprint(trainer, module)
        return summarise(
            trainer.global_rank,
            trainer.local_rank,
            self.device,
            steps,
            self.metrics,
            list(module.parameters()),
            trainer.optimizers,
            epochs_completed=trainer.fit_loop.epoch_progress.current.completed,
            flops_per_sample=declared_flops(module),
            metrics={**self.metrics.final, **counted(module)},
            steps_without_loss=steps.steps_without_loss,
            own_batches=getattr(trainer, "datamodule", None) is not None,
            loader_batch_size=loader_batch_size(trainer),
            data_shard=self.shards.data_shard,
            pipeline=getattr(strategy, "pipeline_record", None),
            rehearsed=getattr(strategy, "rehearsal_record", None),
            communication=communication(steps.steps - steps.warmup_steps),
            missing={**steps.missing, **self.shards.missing},
            parameters_changed=None if self._before is None else after != self._before,
            replica_fingerprint=after if holds_replica(trainer) else None,
            **self._host_figures,
            execution=self.execution() if self.execution is not None else None,
            length=self.length() if self.length is not None else None,
            stopped=self._stopped,
            checkpoints=self._kept,
            callbacks_ms_per_step=self.callbacks.ms_per_step,
            own_optimizer=class_names(trainer.optimizers) if self.brings_optimizer else None,
        )


def _fingerprint(trainer: pl.Trainer, module: pl.LightningModule) -> tuple[float, float] | None:
    learning = module.parameters() if trainer.optimizers else ()
    return parameter_fingerprint(learning, trainer.strategy.root_device)


def planned_steps(trainer: pl.Trainer) -> int | None:
    """Optimizer steps this fit means to take; None where nothing bounds it."""
    if trainer.max_steps == -1 and trainer.max_epochs in (None, -1):
        return None  # not asked for: a cell's trainer refuses whoever wants to know it
    total = trainer.estimated_stepping_batches
    sampler = getattr(trainer.train_dataloader, "batch_sampler", None)
    if sampler is not None and getattr(sampler, "steps_per_batch", 1) > 1:
        # Lightning counts batches, and these hold several steps each.
        epochs = trainer.max_epochs if trainer.max_epochs not in (None, -1) else math.inf
        limit = trainer.max_steps if trainer.max_steps != -1 else math.inf
        total = min(sampler.steps * epochs, limit)
    return int(total) if math.isfinite(total) and total >= 0 else None
