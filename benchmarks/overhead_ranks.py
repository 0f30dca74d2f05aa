"""What a rank of ``overhead.py`` does: trains a cell and switches parts of it between windows."""

from __future__ import annotations

import copy
import functools
import gc
import random
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytorch_lightning as pl
import torch
from overhead import EVERYTHING, GRADIENT_HOOK, LOOP, PARTS, SAMPLER_SWITCH
from team import answer, between, endless, mark, step_by_hand, team_folder

from scalewise.train.recording import CellRecorder, Mark
from scalewise.train.recording.background import Drain, GiveWay
from scalewise.train.recording.gradient_communication import GradientWatch
from scalewise.train.recording.step_clock import whole_step

SHORTEST_S, LONGEST_S = 0.4, 0.9
"""Of a window: what beats once a second falls into another place of each."""
LEFT_OUT_STEPS, LEFT_OUT_S = 3, 0.06
"""After a switch: at least so many steps, and at least so long."""
LEAST_STEPS, WARMUP_STEPS = 10, 12
"""Of a window, and of each state before them: DDP's buckets and the hook settle in these."""


@dataclass(frozen=True)
class Window:
    """A stretch of steps in one state: of a pair, ``part`` is on in one window and off in one."""

    pair: int
    part: str
    is_on: bool
    steps: int
    left_out: int = 0
    """First steps, which are not timed."""


class Turns(pl.Callback):
    """Takes the steps of a cell in windows, and hands them to the parent at the end.

    Args:
        pairs: how many of each part.
        seed: of order and lengths of windows.
        until: of the monotonic clock; no pair begins after it.
        planted_ms: rank 0 sleeps so long in each step while a part is on.
    """

    def __init__(
        self, pairs: Mapping[str, int], seed: int, until: float, planted_ms: Mapping[str, float]
    ) -> None:
        self.pairs, self.seed, self.until, self.planted_ms = pairs, seed, until, planted_ms
        self.windows: list[dict[str, Any]] = []
        self.slept_s: dict[str, list[float]] = {part: [] for part in planted_ms}
        self._step = 0
        """Of the present window."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.loop: Any = trainer.fit_loop.epoch_loop
        self.trainer, self._advance = trainer, self.loop.advance
        self.loop.advance = self.advance
        self.device = trainer.strategy.root_device
        self.switches = Switches(trainer)
        self._batches = endless(trainer.train_dataloader)
        self._plan = self._draw()
        self._begin()

    def advance(self, data_fetcher: Any) -> None:
        """A step in place of the epoch loop's; its own when the plan is done."""
        window = self._window
        if window.part == LOOP and not window.is_on:
            self._by_hand()
        else:
            self._advance(data_fetcher)
        for part in self._sleeps:
            began = time.perf_counter()
            time.sleep(self.planted_ms[part] / 1e3)
            self.slept_s[part].append(time.perf_counter() - began)
        self._step += 1
        if self._step == window.left_out:
            self._started = self._now()
        elif self._step == window.left_out + window.steps:
            ms = between(self._started, self._now())
            self.windows.append({**vars(window), "step_ms": ms / window.steps})
            self._begin()

    def _by_hand(self) -> None:
        """A step by hand on the cell's model and loader."""
        network, optimizer = self.trainer.lightning_module.network, self.trainer.optimizers[0]
        x, target = (part.to(self.device, non_blocking=True) for part in next(self._batches))
        context = self.trainer.precision_plugin.train_step_context()
        step_by_hand(network, optimizer, x, target, context)

    def _begin(self) -> None:
        """Switch to the next window, or back to how a cell trains at the end of the plan."""
        window = next(self._plan, None)
        if window is None:
            self.switches.set(frozenset(EVERYTHING))  # the recorder closes what it opened
            self.loop.advance, self.trainer.should_stop = self._advance, True
            return
        changed = EVERYTHING if window.part in ("everything", LOOP) else (window.part,)
        measures = window.is_on and window.part != LOOP
        on = frozenset(p for p in EVERYTHING if measures or p not in changed)
        self.switches.set(on)
        is_first = self.trainer.global_rank == 0
        named = (*on, "everything") if on == set(EVERYTHING) else on
        self._sleeps = [part for part in self.planted_ms if is_first and part in named]
        self._window, self._step = window, 0
        self._started = self._now()

    def _draw(self) -> Iterator[Window]:
        """Warm-up, then the pairs of all parts mixed, for as long as the time lasts."""
        for is_on in (True, False, True, False):
            yield Window(-1, "everything", is_on, WARMUP_STEPS)
        steps = 20
        for _ in range(2):  # short at first: how many steps make a second is not known
            yield Window(-1, "null", True, steps)
            step_s = self.largest(self.windows[-1]["step_ms"]) / 1e3
            steps = max(20, round(1.0 / step_s))
        rng = random.Random(self.seed)
        alone = self.trainer.world_size == 1
        parts = [p for p in PARTS if p != (GRADIENT_HOOK if alone else LOOP)]
        order = [part for part in parts for _ in range(self.pairs[part])]
        rng.shuffle(order)
        left_out = max(LEFT_OUT_STEPS, round(LEFT_OUT_S / step_s))
        for pair, part in enumerate(order):
            if self.largest(time.monotonic()) > self.until:
                return
            for is_on in rng.sample((True, False), 2):
                steps = max(LEAST_STEPS, round(rng.uniform(SHORTEST_S, LONGEST_S) / step_s))
                yield Window(pair, part, is_on, steps, left_out)

    def largest(self, value: float) -> float:
        """Over all ranks."""
        if self.trainer.world_size == 1:
            return value
        found = torch.tensor(value, dtype=torch.float64, device=self.device)
        torch.distributed.all_reduce(found, torch.distributed.ReduceOp.MAX)
        return float(found)

    def _now(self) -> Any:
        return mark(self.device.type == "cuda")

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        took_ms = {part: 1e3 * sum(s) / len(s) for part, s in self.slept_s.items() if s}
        answer({"windows": self.windows, "planted_took_ms": took_ms})


class Unrecorded:
    """In the recorder's place where nothing is recorded: four empty calls a step."""

    def on_before_backward(self, *_: Any) -> None:
        pass

    on_after_backward = on_before_optimizer_step = on_train_batch_end = on_before_backward


@dataclass(frozen=True)
class Replica:
    """A model with its optimizer under a DDP of its own."""

    module: Any
    model: Any
    optimizer: Any
    gradients: Any
    """Listens to the last gradient, or to none."""


class Switches:
    """What differs from window to window on this rank; what is left when a part is off."""

    def __init__(self, trainer: pl.Trainer) -> None:
        self.trainer, self.loop = trainer, trainer.fit_loop.epoch_loop
        self.recorder: Any = next(c for c in trainer.callbacks if isinstance(c, CellRecorder))
        strategy = trainer.strategy
        steps = self.recorder.steps
        first = Replica(
            trainer.lightning_module, strategy.model, trainer.optimizers[0], steps.gradients
        )
        alone = trainer.world_size == 1
        self.replicas = {True: first, False: first if alone else self._without_hook(first)}
        self._sampler = team_folder() / SAMPLER_SWITCH
        self._draining = threading.Lock()
        drains = self.recorder._background._drains
        self._drains = [functools.partial(self._drain, drain) for drain in drains]
        drains[:] = self._drains
        self._held: tuple[int, int] | None = None
        """Rows and losses that waited for the recording thread when it was switched off."""
        names = ((self.loop, "_on_before_fetch"), (self.loop, "_on_after_fetch"),
                 (strategy, "batch_to_device"), (strategy, "training_step"))  # fmt: skip
        self._wrapped = {(owner, name): vars(owner)[name] for owner, name in names}
        # As before the fit: what was built is no work for the collector.
        gc.collect()
        gc.freeze()

    def _without_hook(self, first: Replica) -> Replica:
        """A copy in a DDP of its own, none of whose parameters ever had a hook.

        Taking a hook off leaves an empty dict that autograd still asks, with the interpreter's
        lock, at every gradient: so the hook cannot be taken off the replica that has it.
        """
        first.module.trainer = None
        module = copy.deepcopy(first.module)
        first.module.trainer = module.trainer = self.trainer
        model = self.trainer.strategy._setup_model(module)
        watch = GradientWatch(functools.partial(self.recorder.steps.mark, Mark.LAST_BUCKET))
        return Replica(module, model, module.configure_optimizers(), watch)

    def set(self, on: frozenset[str]) -> None:
        """Let exactly these be on."""
        self._record_in_thread("recording_thread" in on)
        self._mark("phase_marks" in on)
        if self.trainer.global_rank == 0:
            self._sampler.write_bytes(bytes(["device_sampler" in on]))
        recorder = self.recorder if "step_records" in on else Unrecorded()
        self.loop.automatic_optimization._recorder = recorder
        used, strategy = self.replicas[GRADIENT_HOOK in on], self.trainer.strategy
        strategy.model, strategy._lightning_module = used.model, used.module
        strategy.optimizers = [used.optimizer]
        self.recorder.steps.gradients = used.gradients
        self.recorder.steps.restart_step()

    def _record_in_thread(self, on: bool) -> None:
        """Off: the thread wakes as often and finds nothing to do, and its rows are dropped.

        Rows of windows with the thread stay for it: all of their work is done in such windows.
        """
        background, clock = self.recorder._background, self.recorder.steps.clock
        pending = self.recorder.metrics._pending
        with self._draining:
            if self._held is not None:
                while len(clock._finished) > self._held[0]:
                    step = clock._finished.pop()
                    step = whole_step(*step) if isinstance(step, tuple) else step
                    clock._pool.extend(step.spent_events())
                while len(pending) > self._held[1]:
                    pending.pop()
            background._drains[:] = self._drains if on else []
            self._held = None if on else (len(clock._finished), len(pending))

    def _drain(self, drain: Drain, wait: bool, give_way: GiveWay | None) -> None:
        with self._draining:
            drain(wait, give_way)

    def _mark(self, on: bool) -> None:
        """Off: the end of a step alone is marked, and nothing is around Lightning's methods."""
        clock = self.recorder.steps.clock
        clock._anatomy = on
        clock.divides &= on
        for (owner, name), wrapped in self._wrapped.items():
            setattr(owner, name, wrapped if on else wrapped.__wrapped__)
