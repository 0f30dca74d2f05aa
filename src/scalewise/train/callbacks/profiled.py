"""The window of a profiled cell: some steps under torch's profiler, and the record of it.

Under DDP, blocks of steps follow, in turn without and with the reduction of gradients, the
profiler stopped: what the reduction costs a step in all, the slower computation beside it included.
"""

from __future__ import annotations

from dataclasses import replace

import pytorch_lightning as pl
from torch.nn.parallel import DistributedDataParallel

from scalewise.measure.profiler_window import ProfilerWindow
from scalewise.records import CellFolder
from scalewise.records.profile import WindowProfile, save_profile, trace_name
from scalewise.train.profiling import BLOCK_STEPS, BLOCKS, ProfileConfig


class ProfiledSteps:
    """Opens the profiler after warm-up and writes ``profile/rank<r>.json`` at the end.

    Args:
        folder: the cell's folder.
        warmup_steps: steps before the window.
        profile: how many steps it has, and whether a trace is kept.
    """

    def __init__(self, folder: CellFolder, warmup_steps: int, profile: ProfileConfig) -> None:
        self._folder = folder
        self._first = warmup_steps
        self._profile = profile
        self._window: ProfilerWindow | None = None
        self._found: WindowProfile | None = None
        self._steps = 0
        self._reduced: list[int] = []
        self._unreduced: list[int] = []

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._first == 0:
            self._open(trainer)

    def on_step(self, trainer: pl.Trainer, steps: int) -> None:
        """``steps`` optimizer steps are done."""
        self._steps = steps
        if self._window is not None and steps >= self._first + self._profile.steps:
            self._close(trainer)
        elif steps >= self._first and self._window is None and self._found is None:
            self._open(trainer)
        if self._found is not None and trainer.accumulate_grad_batches == 1:
            self._take_turns(trainer, steps)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._window is not None and self._steps > self._first:
            self._close(trainer)  # the data ended before the window did
        if self._found is not None:
            done = (tuple(self._reduced), tuple(self._unreduced))
            found = replace(self._found, reduced_steps=done[0], unreduced_steps=done[1])
            save_profile(self._folder, found)

    def _open(self, trainer: pl.Trainer) -> None:
        self._window = ProfilerWindow(trainer.global_rank, trainer.strategy.root_device)
        self._window.start()

    def _close(self, trainer: pl.Trainer) -> None:
        assert self._window is not None
        path = self._folder.profile_path / trace_name(trainer.global_rank)
        steps = self._steps - self._first
        self._found = self._window.stop(steps, path if self._profile.trace else None)
        self._window = None

    def _take_turns(self, trainer: pl.Trainer, done: int) -> None:
        """Decide whether the next step, number ``done``, reduces."""
        model = trainer.strategy.model
        if not isinstance(model, DistributedDataParallel):
            return
        block, place = divmod(done - self._first - self._profile.steps, BLOCK_STEPS)
        reduces = block >= BLOCKS or block % 2 == 1
        # What no_sync() sets for the length of a block.
        model.require_backward_grad_sync = reduces
        if block < BLOCKS and place > 0 and done < trainer.max_steps:  # the first one settles
            (self._reduced if reduces else self._unreduced).append(done)
