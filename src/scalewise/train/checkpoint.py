"""Going on after an interruption: checkpoints by Lightning, and what it does not keep itself.

Lightning saves weights, optimizer and counters. A run that is to go on as if nothing had happened
also needs the random states of every rank, the place in the epoch's order of samples, and the
metrics so far. Nothing is saved at the last batch of an epoch, where Lightning's counters stand
between two epochs; the next step's end is as good.
"""

from __future__ import annotations

import itertools
import random
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path, PosixPath
from pickle import UnpicklingError
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch

from scalewise.config import CheckpointConfig, ConfigError
from scalewise.records import (
    CellFolder,
    Checkpoint,
    last_checkpoint,
    part_path,
    seal_checkpoint,
)
from scalewise.train.rank import RankContext, gathered
from scalewise.train.recording import BatchesInPlace, CellRecorder

_PACE_STEPS = 10
"""Steps from which the pace is told, before the first checkpoint by time."""


class Restarts:
    """Saves one rank's part of a cell's checkpoints, and starts from the last one.

    Without an interval in ``config`` nothing is done at all.
    """

    def __init__(
        self,
        config: CheckpointConfig,
        folder: CellFolder,
        rank: RankContext,
        recorder: CellRecorder,
        ckpt_path: str | None = None,
    ) -> None:
        self._ckpt_path = ckpt_path
        self._config = config
        self._folder = folder
        self._rank = rank
        self._recorder = recorder
        self._from = last_checkpoint(folder.path) if config.on else None
        if (self._from is not None or ckpt_path is not None) and not config.trust:
            torch.serialization.add_safe_globals(PLAIN)
        first = 0 if self._from is None else self._from[1].step
        self._saved_at = first
        self._next = first + (config.every_n_steps or _PACE_STEPS)
        self._pace_from = (first, time.monotonic())
        self._paced = config.every_n_steps is not None

    def fit_arguments(self) -> dict[str, Any]:
        """Arguments with which ``Trainer.fit`` starts from the last checkpoint.

        The first try starts from the user's, if there is one.
        """
        path = self._ckpt_path if self._from is None else str(self._from[0] / "trainer.ckpt")
        if path is None:
            return {}
        return {"ckpt_path": path, "weights_only": not self._config.trust}

    def attach(self, trainer: pl.Trainer) -> None:
        """Take part in ``trainer``'s loop. Call it when everything else has."""
        if not self._config.on:
            return
        loop: Any = trainer.fit_loop.epoch_loop
        end = loop.on_advance_end

        def on_advance_end(fetcher: Any) -> None:
            end(fetcher)
            self._after_batch(trainer)

        loop.on_advance_end = on_advance_end
        if self._from is not None:
            self._go_on(trainer, loop, *self._from)

    def _go_on(self, trainer: pl.Trainer, loop: Any, path: Path, checkpoint: Checkpoint) -> None:
        rank = self._rank.rank
        metrics = path / f"metrics{rank}.jsonl"
        self._recorder.resume(checkpoint.step, checkpoint.samples[rank], metrics)
        strategy: Any = trainer.strategy
        process = strategy.process_dataloader
        waiting = [checkpoint.batch]

        def skipping(loader: object) -> object:
            processed = process(loader)
            if trainer.training and waiting and hasattr(processed, "batch_sampler"):
                SkippingBatches(processed.batch_sampler, waiting.pop()).put_into(processed)
            return processed

        strategy.process_dataloader = skipping
        advance = loop.advance

        def first_advance(fetcher: Any) -> None:
            # Not before: making the loader's iterator draws random numbers of its own.
            loop.advance = advance
            # Lightning's own advance says so; the lean one, which may stand here, does not.
            loop.val_loop.restarting = False
            states = torch.load(path / f"rank{rank}.pt", weights_only=not self._config.trust)
            _restore_random(states)
            advance(fetcher)

        loop.advance = first_advance

    def _after_batch(self, trainer: pl.Trainer) -> None:
        steps = self._recorder.steps
        at_end = trainer.fit_loop.epoch_loop.batch_progress.is_last_batch
        if steps.steps < self._next or steps.inside_step or at_end:
            return
        if self._paced and steps.steps > self._saved_at:
            self._save(trainer)
            self._saved_at = steps.steps
        self._next = steps.steps + self._interval(trainer)
        steps.restart_step()

    def _interval(self, trainer: pl.Trainer) -> int:
        """Steps until the next checkpoint, the same on all ranks."""
        if self._config.every_n_steps is not None:
            return self._config.every_n_steps
        assert self._config.every_s is not None
        step, then = self._pace_from
        now, done = time.monotonic(), self._recorder.steps.steps
        pace_s = (now - then) / max(1, done - step)
        self._pace_from, self._paced = (done, now), True
        wanted = max(1, round(self._config.every_s / max(pace_s, 1e-6)))
        agreed: int = trainer.strategy.broadcast(wanted)
        return agreed

    def _save(self, trainer: pl.Trainer) -> None:
        rank, steps = self._rank, self._recorder.steps
        part = part_path(self._folder.path, steps.steps)
        part.mkdir(parents=True, exist_ok=True)
        torch.save(_random_states(), part / f"rank{rank.rank}.pt")
        metrics = self._recorder.metrics_so_far()
        if metrics is not None:
            shutil.copyfile(metrics, part / f"metrics{rank.rank}.jsonl")
        samples = gathered(steps.samples, rank.world_size)
        # It ends with a barrier: after it, the files of every rank are there.
        trainer.save_checkpoint(part / "trainer.ckpt")
        if rank.is_first:
            seal_checkpoint(
                part,
                Checkpoint(
                    step=steps.steps,
                    batch=trainer.fit_loop.epoch_loop.batch_progress.current.completed,
                    world_size=rank.world_size,
                    samples=samples,
                    devices=(rank.device.name,),
                    code=self._folder.load_provenance().code,
                    files={},
                ),
            )


class SkippingBatches(BatchesInPlace):
    """Its first epoch begins after ``count`` batches."""

    def __init__(self, inner: Any, count: int) -> None:
        super().__init__(inner)
        self.count = count

    def __iter__(self) -> Iterator[Any]:
        skip, self.count = self.count, 0
        yield from itertools.islice(self.inner, skip, None)


def _random_states() -> dict[str, Any]:
    numpy: dict[str, Any] = dict(np.random.get_state(legacy=False))
    words = numpy["state"]["key"].tolist()
    return {
        "python": random.getstate(),
        # Without NumPy's own objects, which are no plain values to torch.
        "numpy": {**numpy, "state": {**numpy["state"], "key": words}},
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }


def _restore_random(states: dict[str, Any]) -> None:
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if states["cuda"] is not None:
        torch.cuda.set_rng_state(states["cuda"])


PLAIN: list[Any] = [dict, int, list, defaultdict, PosixPath]
"""Classes of hyper-parameters allowed beside torch's own: to load them runs no code."""


def refusal(error: UnpicklingError) -> ConfigError:
    """What a user reads where torch refuses the content of a checkpoint."""
    lines = str(error).partition("Check the documentation")[0].strip().splitlines()
    said = lines[-1].strip() if lines else "torch refuses to load it"
    why = said.partition(". Please use")[0]  # ways around it that nobody has here
    return ConfigError(
        f"checkpoint.trust: found false, and {why}; to load such a checkpoint can be to run code; "
        "allowed: hyper-parameters of plain values, or checkpoint.trust=true"
    )
