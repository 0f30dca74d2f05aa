"""A rank of ``overhead.py``: trains as a cell does, and switches parts of itself between windows.

What is switched, and what is left when it is off, stands beside each switch in :class:`Switches`.
"""

from __future__ import annotations

import argparse
import copy
import functools
import gc
import itertools
import mmap
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paired_windows import Window, draw_rounds, draw_windows
from team import across_ranks, my_place

# First what binds this process to its cores; torch counts its threads on import.
MEASURING = ("recording_thread", "phase_marks", "gradient_hook", "device_sampler")
"""The parts of measuring that are switched one by one."""
EVERYTHING = (*MEASURING, "step_records")
REMEDIES = ("lightning_loop", "gc_at_fixed_steps", "one_openmp_thread", "loader_workers")
NOTHING = ("null", "other_replica")
"""A switch with nothing behind it, and another pair of replicas like the first one."""
PRODUCT = frozenset((*EVERYTHING, "lightning_loop"))
"""What is on in a cell."""
LEFT_OUT_STEPS, LEFT_OUT_S = 3, 0.06
"""After a switch: at least so many steps, and at least so long."""
SHORT_STEP_S, LEAST_STEPS = 0.004, 100
"""A window of steps shorter than this holds at least so many."""
WARMUP_STEPS = 12
"""Of each state: DDP's buckets, the optimizer, the loader's workers and the hook settle in it."""
WORKERS = 2
COLLECT_EVERY = 50
SAMPLER_SWITCH = "sampler_on"
"""File of one byte in the team's folder: rank 0 writes it, the sampling process reads it."""


def main(arguments: argparse.Namespace, overrides: Sequence[str]) -> dict[str, Any]:
    """Train, and return what :func:`run_team` hands to the parent: the windows of this rank."""
    overrides = [
        *overrides, "max_steps=1000000000", "warmup_steps=0", "validation=never", "tracking=none",
        *across_ranks(),
    ]  # fmt: skip
    cell, rank = my_place(overrides)
    with tempfile.TemporaryDirectory() as folder:
        return Run(cell, rank, overrides, arguments).fit(Path(folder))


class Run:
    """One fit whose steps belong to windows."""

    def __init__(
        self, cell: Any, rank: Any, overrides: Sequence[str], arguments: argparse.Namespace
    ) -> None:
        self.cell, self.rank, self.overrides, self.arguments = cell, rank, overrides, arguments
        self.kind = rank.device.kind
        self.windows: list[dict[str, Any]] = []
        self.step_s = 0.0
        self._left = self._timed = 0
        """Steps of the window, and those of them that are still to be timed."""
        self._each_step: Callable[[], None] | None = None
        self._plan: Iterator[Window] | None = None

    def fit(self, folder: Path) -> dict[str, Any]:
        import pytorch_lightning as pl
        import torch

        from scalewise.records import CellFolder
        from scalewise.train import experiment
        from scalewise.train.build import build_data, build_module, data_share
        from scalewise.train.execution import Execution, apply_precision
        from scalewise.train.provenance import package_versions
        from scalewise.train.rank import settle_device
        from scalewise.train.recording import CellRecorder

        cell, rank = self.cell, self.rank
        experiment._silence_warnings()
        pl.seed_everything(cell.seed, workers=True, verbose=False)
        apply_precision(cell.precision)
        settle_device(rank, None, False)
        module, share = build_module(cell, rank), data_share(cell, rank)
        self.made = build_data(cell, rank, module, share)["train_dataloaders"]
        recorder = CellRecorder(
            CellFolder(folder), rank.device, 0, cell.log_every_n_steps, share, cell.profile
        )
        recorder.shards.leave_out("the run has no end of an epoch")
        data = {"train_dataloaders": self.loader()}
        trainer = experiment.build_trainer(cell, rank, recorder, module, data, share)
        self.trainer, self.recorder = trainer, recorder
        self.device = trainer.strategy.root_device
        loop: Any = trainer.fit_loop.epoch_loop
        self.lean, loop.advance = loop.automatic_optimization, self.advance
        captures = Execution(self._variant("cudagraph"), rank) if self._captures else None
        around: AbstractContextManager[None] = (captures or Execution(cell, rank)).stream()
        with around:
            experiment._join_process_group(trainer.strategy, cell, rank)
            trainer.fit(module, **data)
        recorder.close(trainer, trainer.lightning_module)
        self.switches.note_replays()
        return {
            "windows": self.windows, "step_ms": 1e3 * self.step_s,
            "planted_took_ms": {
                part: 1e3 * statistics.fmean(slept) for part, slept in self.switches.slept_s.items()
            },
            "missing": self.switches.missing, "notes": self.switches.notes,
            "device": rank.device.name, "cores": len(rank.device.cores),
            "threads": torch.get_num_threads(), "packages": package_versions(),
        }  # fmt: skip

    @property
    def _captures(self) -> bool:
        return self.arguments.execution > 0 and self.rank.device.kind == "cuda"

    def _variant(self, execution: str, steps_per_batch: int | None = None) -> Any:
        from team import compose

        from scalewise.config import build_cell

        more = [] if steps_per_batch is None else [f"execution.steps_per_batch={steps_per_batch}"]
        return build_cell(compose([*self.overrides, f"execution={execution}", *more]))

    def loader(self, workers: int = 0, steps_per_batch: int = 1) -> Any:
        """The cell's loader, without an end."""
        from scalewise.train.data import make_loader

        sampler = copy.copy(self.made.batch_sampler)
        sampler.steps_per_batch = steps_per_batch
        config = replace(self.cell.loader, num_workers=workers)
        return make_loader(self.made.dataset, Endless(sampler), config, self.kind)

    # Steps

    def advance(self, data_fetcher: Any) -> None:
        """In place of the epoch loop's: one call of the present way to step, or a window by hand.

        Lightning's loop goes round between two calls, as it does in a cell.
        """
        if self._left <= 0 and not self._begin_window(data_fetcher):
            self.trainer.should_stop = True
            return
        switches = self.switches
        step, steps = switches.step, switches.steps_per_call
        while True:
            step()
            if self._each_step is not None:
                self._each_step()
            before, self._left = self._left, self._left - steps
            if before > self._timed >= self._left:
                self._timed = self._left
                self.watch.start()
            if self._left <= 0:
                self._end_window()
                return
            if not switches.by_hand:
                return

    def _begin_window(self, data_fetcher: Any) -> bool:
        """Switch; False at the end of the plan."""
        if self._plan is None:
            self.watch = Stopwatch(self.kind)
            self.switches = Switches(self, data_fetcher)
            self._plan = self._windows()
        window = next(self._plan, None)
        if window is None:
            self.switches.set(PRODUCT)  # as at the start: the recorder closes what it opened
            return False
        began = time.perf_counter()
        on = self.switches.meant_by(window.design, window.on)
        self.switches.set(on)
        self._each_step = self.switches.each_step
        left_out = max(LEFT_OUT_STEPS, round(LEFT_OUT_S / self.step_s)) if self.step_s else 1
        steps = round(window.seconds / self.step_s) if self.step_s else round(window.seconds)
        per_call = self.switches.steps_per_call
        left_out = -(-left_out // per_call) * per_call
        least = LEAST_STEPS if 0 < self.step_s < SHORT_STEP_S else 1
        steps = -(-max(least, steps - left_out) // per_call) * per_call
        self._left, self._timed = left_out + steps, steps
        self._window = {
            "pair": window.pair, "design": window.design, "on": list(window.on), "steps": steps,
            "switch_ms": 1e3 * (time.perf_counter() - began),
        }  # fmt: skip
        return True

    def _end_window(self) -> None:
        self.windows.append({**self._window, **self.watch.stop()})

    def _windows(self) -> Iterator[Window]:
        """Warm-up, then the plan of all ranks for as long as the time lasts."""
        arguments = self.arguments
        for on in self.switches.warmup():
            yield Window(-1, "warm_up", on, float(WARMUP_STEPS))
        product = self.switches.arms[:1] or tuple(sorted(PRODUCT))
        for seconds in (0.3, 1.0):  # short at first: how many steps make a second is not known
            steps = 20 if not self.step_s else seconds / self.step_s
            self.step_s = 0.0
            yield Window(-1, "calibration", product, float(round(steps)))
            last = self.windows[-1]
            self.step_s = self.largest(last["seconds"] / last["steps"])
        if arguments.execution:
            plan = draw_rounds("execution", self.switches.arms, arguments.execution, arguments.seed)
        else:
            there = [part for part in (*MEASURING, *REMEDIES) if part not in self.switches.missing]
            plan = draw_windows(
                {
                    "everything": (("everything", *NOTHING), arguments.everything),
                    "parts": ((*there, *NOTHING), arguments.parts),
                },
                arguments.seed,
            )
        for _, pair in itertools.groupby(plan, key=lambda window: window.pair):
            if self.largest(time.monotonic()) > arguments.until:
                return
            yield from pair

    def largest(self, value: float) -> float:
        """Over all ranks."""
        import torch

        found = torch.tensor(value, dtype=torch.float64, device=self.device)
        torch.distributed.all_reduce(found, torch.distributed.ReduceOp.MAX)
        return float(found)


class Endless:
    """Epoch after epoch of a batch sampler, in the form that Lightning and the cell ask for."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return 10**12

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __iter__(self) -> Iterator[list[int]]:
        for epoch in itertools.count():
            self.inner.set_epoch(epoch)
            yield from self.inner


class Stopwatch:
    """Time of a window: between two CUDA events on a GPU, else by the host's clock.

    The events lie in the stream of the steps: the first waits for nothing, so that the GPU has
    work in store when the window begins, as it has in the middle of a run.
    """

    def __init__(self, kind: str) -> None:
        import torch

        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(2 * (kind == "cuda"))]

    def start(self) -> None:
        for event in self.events[:1]:
            event.record()
        self.began_cpu_s = time.thread_time()
        self.began_ns = time.perf_counter_ns()

    def stop(self) -> dict[str, float]:
        """Begin on the host in ns, seconds, those by the host's clock, and CPU time of this thread.

        Waits for the GPU, which is in the host's seconds and not in the CPU's.
        """
        cpu_s = time.thread_time() - self.began_cpu_s
        for event in self.events[1:]:
            event.record()
            event.synchronize()
        host_s = (time.perf_counter_ns() - self.began_ns) / 1e9
        seconds = self.events[0].elapsed_time(self.events[1]) / 1e3 if self.events else host_s
        return {
            "began_ns": self.began_ns, "seconds": seconds, "host_seconds": host_s,
            "thread_cpu_seconds": cpu_s,
        }  # fmt: skip


@dataclass(frozen=True)
class Replica:
    """A model with its optimizer under a DDP of its own."""

    module: Any
    model: Any
    optimizer: Any
    gradients: Any
    """Listens to the last gradient, or to none."""


@dataclass(frozen=True)
class Arm:
    """A way of executing the step."""

    replica: Replica
    step: Callable[[], None]
    steps_per_call: int


class Unrecorded:
    """In the recorder's place where nothing is recorded: four empty calls a step."""

    def on_before_backward(self, *_: Any) -> None:
        pass

    on_after_backward = on_before_optimizer_step = on_train_batch_end = on_before_backward


def no_mark(mark: Any) -> None:
    pass


class Switches:
    """Everything that differs from window to window, on this rank."""

    def __init__(self, run: Run, data_fetcher: Any) -> None:
        import torch

        self.run, self.trainer, self.recorder = run, run.trainer, run.recorder
        self.planted = dict(run.arguments.plant)
        self.slept_s: dict[str, list[float]] = {}
        """Seconds of every sleep, by what it was planted in."""
        self.missing: dict[str, str] = {}
        """Parts that cannot be switched here, each with the reason."""
        self.notes: dict[str, str] = {}
        self.step: Callable[[], None]
        self.steps_per_call, self.by_hand = 1, False
        self.each_step: Callable[[], None] | None = None
        self.arms: tuple[str, ...] = ()
        self._since_collected = 0
        self._threads = torch.get_num_threads()
        self._held: tuple[int, int] | None = None
        strategy = self.trainer.strategy
        first = Replica(
            self.trainer.lightning_module, strategy.model, self.trainer.optimizers[0],
            self.recorder.steps.gradients,
        )  # fmt: skip
        self._byte: mmap.mmap | None = None
        if run.rank.is_first:
            path = Path(os.environ["SCALEWISE_BENCHMARK_FOLDER"]) / SAMPLER_SWITCH
            self._byte = mmap.mmap(os.open(path, os.O_RDWR), 1)
        self._drains = list(self.recorder._background._drains)
        self._wrapped = self._wrapped_methods()
        self._lean_fetcher = data_fetcher
        if run.arguments.execution:
            self._make_arms(first, data_fetcher)
        else:
            self._make_parts(first, data_fetcher)
        # As before the fit: what was built is no work for the collector.
        gc.collect()
        gc.freeze()

    # Made once

    def _make_parts(self, first: Replica, data_fetcher: Any) -> None:
        run = self.run
        self.replicas = {
            (hook, other): first if hook and not other else self._replica(run.cell, hook)
            for other in (False, True)
            for hook in (True, False)
        }
        self.fetchers = {False: data_fetcher, True: self._fetcher(run.loader(WORKERS))}
        self.by_hand_batches = {
            False: iter(run.loader()), True: iter(run.loader(WORKERS))
        }  # fmt: skip
        if self._threads == 1:
            self.missing["one_openmp_thread"] = "there is one already"

    def _make_arms(self, first: Replica, data_fetcher: Any) -> None:
        from scalewise.train.execution import LeanSteps
        from scalewise.train.execution.replay import ReplayedSteps

        run, trainer = self.run, self.trainer
        lean = functools.partial(run.lean.advance, data_fetcher)
        self.ways = {"eager": Arm(first, lean, 1)}
        compiled = self._replica(run._variant("compile"), True, compiles=True)
        steps = functools.partial(LeanSteps(trainer, self.recorder).advance, data_fetcher)
        self.ways["compile"] = Arm(compiled, steps, 1)
        if run._captures:
            per_batch = run.arguments.steps_per_batch
            captured = self._replica(run._variant("cudagraph", per_batch), False)
            eager_steps = run._variant("cudagraph").execution.eager_steps(run.rank.world_size)
            self.replayed = ReplayedSteps(trainer, self.recorder, per_batch, eager_steps)
            fetcher = self._fetcher(run.loader(steps_per_batch=per_batch))
            self.ways["cudagraph"] = Arm(
                captured, functools.partial(self.replayed.advance, fetcher), per_batch
            )
        self.arms = tuple(self.ways)

    def note_replays(self) -> None:
        """Say whether the steps of ``cudagraph`` were replayed."""
        if "cudagraph" in self.arms:
            reason = self.replayed.fell_back_because
            self.notes["cudagraph"] = "replayed" if reason is None else f"eager, because {reason}"

    def _replica(self, cell: Any, hook: bool, compiles: bool = False) -> Replica:
        """Another model like the first, in a DDP made as the cell's strategy makes it."""
        import torch
        from torch.nn.parallel import DistributedDataParallel

        from scalewise.train.build import build_module
        from scalewise.train.execution import Execution
        from scalewise.train.recording.gradient_communication import GradientWatch
        from scalewise.train.recording.step_phases import Mark

        strategy: Any = self.trainer.strategy
        torch.manual_seed(self.run.cell.seed)
        module = build_module(cell, self.run.rank)
        if compiles:
            Execution(cell, self.run.rank).change(module)
        module.to(strategy.root_device).train()
        module.trainer = self.trainer
        model = strategy._setup_model(module)
        assert isinstance(model, DistributedDataParallel)
        steps = self.recorder.steps
        gradients = GradientWatch(functools.partial(steps.mark, Mark.LAST_BUCKET))
        if hook:
            gradients.watch(model, None)
        return Replica(module, model, module.configure_optimizers(), gradients)

    def _fetcher(self, loader: Any) -> Any:
        from pytorch_lightning.utilities.combined_loader import CombinedLoader

        fetcher = type(self._lean_fetcher)()
        fetcher.setup(CombinedLoader(loader, "max_size_cycle"))
        return iter(fetcher)

    def _wrapped_methods(self) -> Mapping[tuple[Any, str], Any]:
        """What the step timer put around the loop's methods, to be taken off and put back."""
        loop, strategy = self.trainer.fit_loop.epoch_loop, self.trainer.strategy
        names = ((loop, "_on_before_fetch"), (loop, "_on_after_fetch"),
                 (strategy, "batch_to_device"), (strategy, "training_step"))  # fmt: skip
        return {(owner, name): vars(owner)[name] for owner, name in names}

    # What a window's name stands for

    def warmup(self) -> Iterator[tuple[str, ...]]:
        """States in which every replica, loader and way of stepping has run."""
        if self.arms:
            yield from ((arm,) for _ in range(6) for arm in self.arms)
            return
        there = tuple(part for part in (*MEASURING, *REMEDIES) if part not in self.missing)
        for _ in range(2):
            for other in ((), ("other_replica",)):
                yield (*EVERYTHING, "lightning_loop", *other)
                yield ("lightning_loop", *other)
        yield there
        yield tuple(part for part in there if part != "lightning_loop")
        yield ("loader_workers",)
        yield ()

    def meant_by(self, design: str, on: Sequence[str]) -> frozenset[str]:
        """All that is on in a window of this design."""
        if design == "everything":
            whole = EVERYTHING if "everything" in on else ()
            return frozenset((*whole, "lightning_loop", *on))
        if design == "parts":
            return frozenset(("step_records", *on))
        return frozenset((*PRODUCT, *on)) if self.arms else frozenset(on)

    # Switching

    def set(self, on: frozenset[str]) -> None:
        """Let exactly these be on. The GPU has done everything before."""
        self._record_in_thread("recording_thread" in on)
        self._mark("phase_marks" in on)
        if self._byte is not None:
            self._byte[0] = int("device_sampler" in on)
        recorder: Any = self.recorder if "step_records" in on else Unrecorded()
        if self.arms:
            chosen = next((arm for arm in self.arms if arm in on), self.arms[0])
            way = self.ways[chosen]
            self._use(way.replica)
            self.step, self.steps_per_call = way.step, way.steps_per_call
        else:
            self._use(self.replicas["gradient_hook" in on, "other_replica" in on])
            self._step_by(on, recorder)
            self._remedy(on)
        self._plant(on)
        self.recorder.steps.restart_step()

    def _record_in_thread(self, on: bool) -> None:
        """Off: the thread wakes as often and finds nothing to do, and its rows are dropped.

        Rows of windows with the thread stay for it: all of their work is done in such windows.
        """
        background, clock = self.recorder._background, self.recorder.steps._clock
        pending = self.recorder.metrics._pending
        with background._draining:
            if self._held is not None:
                while len(clock._finished) > self._held[0]:
                    clock._pool.extend(clock._finished.pop().spent_events())
                while len(pending) > self._held[1]:
                    pending.pop()
            background._drains[:] = self._drains if on else []
            self._held = None if on else (len(clock._finished), len(pending))

    def _mark(self, on: bool) -> None:
        """Off: the end of a step alone is marked, and nothing is around Lightning's methods."""
        from scalewise.train.recording import Mark

        clock = self.recorder.steps._clock
        marked = type(clock).mark

        def only_the_end(mark: Any) -> None:
            if mark == Mark.OPTIMIZER_END:
                marked(clock, mark)

        vars(clock).pop("mark", None)
        clock._anatomy = on
        if not on:
            clock.mark = only_the_end
        for (owner, name), wrapped in self._wrapped.items():
            vars(owner).pop(name, None)
            if on:
                setattr(owner, name, wrapped)

    def _use(self, replica: Replica) -> None:
        """Off: a replica none of whose parameters ever had a hook.

        Taking a hook off leaves an empty dict that autograd still asks, with the interpreter's
        lock, at every gradient: so the hook cannot be taken off the replica that has it.
        """
        strategy: Any = self.trainer.strategy
        strategy.model, strategy._lightning_module = replica.model, replica.module
        strategy.optimizers = [replica.optimizer]
        self.recorder.steps.gradients = replica.gradients
        self._replica_in_use = replica

    def _step_by(self, on: frozenset[str], recorder: Any) -> None:
        """Off: a loop by hand over the same loader, instead of the cell's in Lightning's."""
        workers = "loader_workers" in on
        self.by_hand = "lightning_loop" not in on
        fetcher, lean = self.fetchers[workers], self.run.lean
        loop: Any = self.trainer.fit_loop.epoch_loop
        fetcher._start_profiler, fetcher._stop_profiler = (
            loop._on_before_fetch,
            loop._on_after_fetch,
        )
        lean._recorder = recorder
        self.step = functools.partial(lean.advance, fetcher)
        if self.by_hand:
            mark = self.recorder.steps.mark if "phase_marks" in on else no_mark
            self.step = self._hand_step(self.by_hand_batches[workers], recorder, mark)

    def _hand_step(
        self, batches: Iterator[Any], recorder: Any, mark: Callable[[Any], None]
    ) -> Callable[[], None]:
        """A step as one writes it by hand, with the marks and records that are on."""
        import torch

        from scalewise.train.recording import Mark

        trainer, device, kind = self.trainer, self.run.device, self.run.kind
        used = self._replica_in_use
        module, model, optimizer = used.module, used.model, used.optimizer
        loss_of = module.network.loss
        is_bf16 = self.run.cell.precision.lightning == "bf16-mixed"
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
        if is_bf16:
            autocast = functools.partial(torch.autocast, kind, dtype=torch.bfloat16)

        def step() -> None:
            mark(Mark.FETCH_BEGIN)
            batch = next(batches)
            mark(Mark.FETCH_END)
            x, target = (part.to(device, non_blocking=True) for part in batch)
            mark(Mark.TRANSFER_END)
            mark(Mark.FORWARD_BEGIN)
            with autocast():
                loss = loss_of(model(x), target)
            mark(Mark.FORWARD_END)
            optimizer.zero_grad()
            recorder.on_before_backward(trainer, module, loss)
            loss.backward()
            recorder.on_after_backward(trainer, module)
            recorder.on_before_optimizer_step(trainer, module, optimizer)
            optimizer.step()
            recorder.on_train_batch_end(trainer, module, {"loss": loss.detach()}, batch, 0)

        return step

    def _remedy(self, on: frozenset[str]) -> None:
        """On: the collector at fixed steps, one OpenMP thread."""
        import torch

        self._collects = "gc_at_fixed_steps" in on
        (gc.disable if self._collects else gc.enable)()
        if "one_openmp_thread" not in self.missing:
            torch.set_num_threads(1 if "one_openmp_thread" in on else self._threads)

    def _plant(self, on: frozenset[str]) -> None:
        """Let rank 0 sleep in each step for what was planted in the parts that are on.

        One rank alone, so that what it took is what the step is longer by.
        """
        planted_ms = {part: ms for part, ms in self.planted.items() if part in on}
        if not self.run.rank.is_first:
            planted_ms = {}
        collects = getattr(self, "_collects", False)

        def each_step() -> None:
            for part, ms in planted_ms.items():
                began = time.perf_counter()
                time.sleep(ms / 1e3)
                self.slept_s.setdefault(part, []).append(time.perf_counter() - began)
            if collects:
                self._since_collected += 1
                if self._since_collected % COLLECT_EVERY == 0:
                    gc.collect(1)

        self.each_step = each_step if planted_ms or collects else None
