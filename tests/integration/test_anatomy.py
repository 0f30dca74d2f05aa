"""Small delays go where they were put: 0.2, 1 and 10 ms into each phase, and nowhere else.

``test_train_timing`` injects long sleeps through the whole command; here each step of one fit gets
one delay in one phase, in turn, so that a drifting host meets all phases alike. Delays are spun,
not slept: a sleep of 0.2 ms takes as long as the kernel pleases.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from scalewise.records import CellFolder, StepSeries, read_steps
from scalewise.train.callbacks.steps import StepTimer

pytestmark = pytest.mark.timing

PHASES = ("data_wait", "h2d", "forward", "backward", "optimizer", "other")
TURNS = (*PHASES, "none")
STEPS_EACH = {0.2: 200, 1.0: 80, 10.0: 40}
"""The shorter the delay, the more steps its median needs."""
WARMUP = 2 * len(TURNS)


class Injector:
    """Spins in the phase whose turn it is; each phase counts the steps for itself."""

    def __init__(self, ms: float) -> None:
        self.seconds = ms / 1e3
        self.counts = {phase: itertools.count() for phase in PHASES}

    def __call__(self, phase: str) -> None:
        step = next(self.counts[phase])
        # What comes after a step's last mark opens the next step.
        if TURNS[(step + (phase == "other")) % len(TURNS)] != phase:
            return
        end = time.perf_counter() + self.seconds
        while time.perf_counter() < end:
            pass


class Spinning(torch.autograd.Function):
    """Passes values on, and calls back when their gradient comes by."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, callback: Callable[[], None]) -> Tensor:
        ctx.callback = callback
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.callback()
        return gradients[0], None


class Samples(Dataset[Any]):
    def __init__(self, inject: Injector, steps: int) -> None:
        self.inject = inject
        self.x = torch.zeros(8 * steps, 4)

    def __len__(self) -> int:
        return len(self.x)

    def __getitems__(self, indices: list[int]) -> list[Tensor]:
        self.inject("data_wait")
        return [self.x[i] for i in indices]

    def __getitem__(self, index: int) -> Tensor:
        return self.x[index]


class Delayed(pl.LightningModule):
    def __init__(self, inject: Injector) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.inject = inject

    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
        self.inject("h2d")
        return super().transfer_batch_to_device(batch, device, dataloader_idx)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        self.inject("forward")
        output: Tensor = Spinning.apply(self.layer(batch), lambda: self.inject("backward"))
        return output.mean()

    def on_train_batch_end(self, *args: Any) -> None:
        self.inject("other")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.0)
        # Lightning runs forward and backward inside step(): only after them it is the optimizer's.
        optimizer.register_step_post_hook(lambda *_: self.inject("optimizer"))
        return optimizer


def fit(folder: Path, ms: float) -> StepSeries:
    inject = Injector(ms)
    steps = WARMUP + STEPS_EACH[ms] * len(TURNS)
    timer = StepTimer(CellFolder(folder), WARMUP)
    trainer = pl.Trainer(
        accelerator="cpu", devices=1, max_epochs=1, callbacks=[timer], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        plugins=[LightningEnvironment()],
    )  # fmt: skip
    trainer.fit(Delayed(inject), DataLoader(Samples(inject, steps), batch_size=8))
    timer.drain(wait=True)
    timer.close()
    return read_steps(CellFolder(folder).steps_path(0), 0).timed()


@pytest.mark.filterwarnings("ignore:.*does not have many workers.*")
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*")
@pytest.mark.filterwarnings("ignore:.*`srun` command is available.*")
@pytest.mark.parametrize("ms", STEPS_EACH)
def test_a_delay_appears_in_its_phase_and_nowhere_else(tmp_path: Path, ms: float) -> None:
    series = fit(tmp_path, ms)
    assert len(series) == STEPS_EACH[ms] * len(TURNS)
    turn = series.rows["step"] % len(TURNS)
    untouched = turn == TURNS.index("none")
    for delayed in PHASES:
        mine = turn == TURNS.index(delayed)
        for phase in PHASES:
            times = series.column(phase)
            # The median: a step that the host interrupted says nothing about the clock.
            alone = float(np.median(times[untouched]))
            excess = float(np.median(times[mine])) - alone
            expected = ms if phase == delayed else 0.0
            # Code runs a little slower after a pause, on a host with neighbours more than a little.
            bound = 0.1 * ms + 0.1 * alone
            assert excess == pytest.approx(expected, abs=bound), (delayed, phase)
