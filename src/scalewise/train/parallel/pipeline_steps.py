"""Training steps of a pipeline: a schedule of forwards and backwards in place of one of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytorch_lightning as pl
from torch import Tensor

from scalewise.measure.step_phases import Mark
from scalewise.train.lean import LeanSteps

if TYPE_CHECKING:
    from scalewise.train.callbacks.recorder import CellRecorder
    from scalewise.train.parallel.pipeline import PipelineStrategy


class PipelineSteps(LeanSteps):
    """Each forward and backward of a microbatch is timed as a part of its own.

    What passes between two parts counts as ``other``: waiting for the neighbouring stages, the
    transfers that nothing hides, and the schedule's own bookkeeping. That is the measured idle
    time to hold against the schedule's bubble.
    """

    def __init__(self, trainer: pl.Trainer, recorder: CellRecorder) -> None:
        super().__init__(trainer, recorder)
        self._schedule: Any = None
        self._arguments: dict[str, Any] = {}

    def step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        """The schedule over one batch, and the optimizer step."""
        trainer, recorder, strategy = self.trainer, self._recorder, self._strategy()
        module, optimizer = trainer.lightning_module, trainer.optimizers[0]
        optimizer.zero_grad()
        losses = self._run_schedule(*batch)
        strategy.ties.sum_gradients()
        strategy.replicas.average_gradients(strategy.stage.parameters())
        loss = strategy.share_loss(losses)
        recorder.steps.end_parts()
        self.optim_progress.optimizer.step.increment_ready()
        recorder.on_before_optimizer_step(trainer, module, optimizer)
        self.clip(module)
        optimizer.step()
        self.optim_progress.optimizer.step.increment_completed()
        return {"loss": loss}

    def clip(self, module: pl.LightningModule) -> None:
        if self.trainer.gradient_clip_val is None:
            return
        strategy = self._strategy()
        parameters = list(strategy.stage.parameters())
        counted = [p for p in parameters if strategy.ties.is_counted_here(p)]
        elsewhere = [p for p in parameters if not strategy.ties.is_counted_here(p)]
        limit = float(self.trainer.gradient_clip_val)
        strategy.replicas.clip(limit, own=counted, elsewhere=elsewhere)

    def _run_schedule(self, x: Tensor, target: Tensor) -> list[Tensor]:
        strategy = self._strategy()
        if self._schedule is None:
            self._make_schedule(strategy)
        losses: list[Tensor] = []
        first = (x,) if strategy.replicas.place == 0 else ()
        last = {"target": target, "losses": losses} if strategy.is_last else {}
        with strategy.precision_plugin.train_step_context():
            self._schedule.step(*first, x=x, **last, **self._arguments)
        return losses

    def _make_schedule(self, strategy: PipelineStrategy) -> None:
        from scalewise.train.parallel.pipeline import without_outputs

        stage, self._schedule = strategy.make_schedule(
            self._timed(strategy.loss_of, Mark.FORWARD_BEGIN, Mark.FORWARD_END)
        )
        for name, begin, end in (
            ("forward_one_chunk", Mark.FORWARD_BEGIN, Mark.FORWARD_END),
            ("backward_one_chunk", Mark.BACKWARD_BEGIN, Mark.BACKWARD_END),
        ):
            setattr(stage, name, self._timed(getattr(stage, name), begin, end))
        self._arguments = without_outputs(self._schedule)

    def _timed(self, inner: Callable[..., Any], begin: Mark, end: Mark) -> Callable[..., Any]:
        steps = self._recorder.steps

        def timed(*args: Any, **kwargs: Any) -> Any:
            steps.begin_part(begin)
            result = inner(*args, **kwargs)
            steps.end_part(end)
            return result

        return timed

    def _strategy(self) -> PipelineStrategy:
        from scalewise.train.parallel.pipeline import PipelineStrategy

        strategy = self.trainer.strategy
        assert isinstance(strategy, PipelineStrategy)
        return strategy
