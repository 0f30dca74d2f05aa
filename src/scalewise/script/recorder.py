"""The records of one rank of a script, and the end of its run."""

from __future__ import annotations

import contextlib
import copy
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DistributedSampler

from scalewise.config import ConfigError, ending_of
from scalewise.host import CoreUseMeter, RunQueue
from scalewise.records import (
    BACKWARD_LOSS,
    FRESH_START,
    UNCOUNTED,
    CellFolder,
    DeviceInfo,
    ExecutionRecord,
    HeartbeatWriter,
    LengthRecord,
    RankSummary,
    ShardIndices,
    write_shard,
)
from scalewise.script.models import Models
from scalewise.script.place import Place, Task
from scalewise.script.steps import Losses, ScriptSteps
from scalewise.train import (
    RankContext,
    RunLength,
    TooLateError,
    backward_id,
    file_store,
    tracing_state,
)
from scalewise.train.recording import (
    BackgroundDrain,
    MetricsRecorder,
    StepTimer,
    class_names,
    count_samples,
    first_shape,
    host_figures,
    logged_name,
    parameter_fingerprint,
    summarise,
)

_thread_id = threading.get_native_id
GRACE_S = 15.0
"""For a script to leave by itself once it was told to; then its process is ended."""
_LOOKED_AT = 3
"""Steps after which everything that is to be seen of a script must have been seen once."""
_UNCOUNTED_UP_TO = 0.05
"""Share of steps without samples up to which the others' make a rate."""
_UNSEEN_UP_TO = 20
"""Optimizer steps with nothing between them: models within models were looked at by then."""


class RunEnds(SystemExit):
    """Ends a script with status 0 where its last step is done.

    No ``except Exception`` takes it for a bad batch.
    """


class ScriptRecorder:
    """Records a script from its first optimizer step on, which itself is not recorded.

    ``moments`` and ``losses`` are there from :meth:`begin` on.
    ``look`` and ``length`` are set by :class:`~scalewise.train.RunLength`, as of other recorders.
    """

    moments: ScriptSteps
    losses: Losses
    starts_after = 1
    """Steps of its optimizer: the first one tells that a script trains."""

    def __init__(self, place: Place, task: Task, device: DeviceInfo) -> None:
        self.folder = CellFolder(Path(place.folder))
        self.steps = StepTimer(self.folder, task.warmup_steps)
        self._metrics = MetricsRecorder(
            self.folder, self.steps, task.log_every_n_steps, loss_name=BACKWARD_LOSS
        )
        self.models = Models(self._on_forward)
        self.look: Callable[[], None] | None = None
        self.length: Callable[[], LengthRecord] | None = None
        self.note_late: Callable[[], None] = lambda: None
        """Puts on record what the script imported after its first step."""
        self.look_at_backward: Callable[[bool], None] = lambda looks: None
        """Told whether backward passes are of any interest from now on; they are at first."""
        self._looks = True
        self._looks_after = 0
        self.sampler: object = None
        """What tells the training loader the indices of each batch; None without any loader."""
        self._place, self._task = place, task
        self.rank = RankContext(place.rank, place.local_rank, place.world_size, device, place.hosts)
        self._last: int | None = task.max_steps  # None while the last step is not known
        self._ending = threading.RLock()
        self._has_ended = False
        self._core_meter, self._run_queue = CoreUseMeter(), RunQueue()
        self._missing: dict[str, str] = {}
        self._logged: dict[str, float | torch.Tensor] = {}
        self._length: RunLength | None = None
        self._thread = threading.get_native_id()
        """The one that trains: no thread of a fork has its number."""
        self._beaten = 0
        self._learns = False
        """Whether the last forward was one with gradients."""
        self._begins_until = max(task.warmup_steps, _LOOKED_AT)
        self._watches = self._fetching = False
        """Whether the gradients of a DDP are watched; whether a batch is waited for."""

    # The beginning

    def begin(self, optimizer: Optimizer) -> None:
        """Record from here on what ``optimizer`` and others train."""
        place, first = self._place, first_parameter(optimizer)
        self._find_models(optimizer)
        self._device = first.device
        self._note_what_is_missing(optimizer, first.device)
        self.steps.open(place.rank, first.device)
        self.moments = ScriptSteps(self.steps, self._on_step, self._on_optimizer)
        self.moments.tells_all = self._last is not None
        self._metrics.open(place.rank, first.device)
        self.losses = Losses(self.steps, self._metrics, place.world_size)
        self._before = self._fingerprint()
        if self._task.ends_by_time:
            # Not the script's own group, which it may leave before its records are whole.
            path = str(self.folder.heartbeat_path(place.rank).parent / "store")
            store = file_store(path, place.world_size) if place.world_size > 1 else None
            least_s = self._task.min_time_s
            self._length = RunLength(least_s, self.rank, self, 2, self._give_up_now, store)
            self._length.take_part()
        self._heartbeat = HeartbeatWriter(self.folder.heartbeat_path(place.rank))
        self._heartbeat.begin(self._last)
        self._background = BackgroundDrain(
            [self.steps.clock.drain, self._metrics.drain, self._beat],
            device=first.device,
            look=self.look,
        )
        self.steps.clock.begin()

    @property
    def _ranks(self) -> int:
        """Ranks that the script is told there are."""
        rehearsed = self._task.rehearsed
        return self._place.world_size if rehearsed is None else rehearsed.ranks

    def _find_models(self, optimizer: Optimizer) -> None:
        self.models.find(optimizer)
        replicas = [
            part
            for model in self.models.found
            for part in model.modules()
            if isinstance(part, DistributedDataParallel)
        ]
        if len(replicas) > 1:
            self._missing["gradients"] = "those of the first of several DDPs are counted alone"
        if replicas and not self._watches:
            self._watches = True
            self.steps.gradients.watch(replicas[0], None)

    def _note_what_is_missing(self, optimizer: Optimizer, trained_on: torch.device) -> None:
        missing = self._missing
        if before := steps_before(optimizer, self.starts_after):
            missing[FRESH_START] = (
                f"its optimizer had done {before:,} steps: the script goes on from a checkpoint, "
                "which may be of the run before; {run} in its arguments gives each run a folder"
            )
        if self._place.as_torchrun:
            missing["plain start"] = (
                "the script asked for torchrun's variables, so one device was started as one rank "
                "of torchrun: where that wraps its model in DDP, the baseline is a DDP of one"
            )
        if self.rank.device.kind != trained_on.type:
            missing["device"] = f"its parameters are on {trained_on}, and a GPU was leased for it"
        if self._ranks > 1 and not self._watches:
            self.steps.missing["exposed_comm_ms"] = (
                "no DistributedDataParallel: others reduce gradients where no hook can see it"
            )

    # What the script does

    def fetch(self, next_batch: Callable[..., Any], *args: Any) -> Any:
        """A batch, for which the script waits. A loader within another one waits with it.

        For one that another thread fetches ahead nobody waits.
        """
        if self.sampler is None and args:  # of validation one may come later
            self.sampler = args[0]._index_sampler
        if (
            _thread_id() != self._thread
            or self._fetching
            or self._has_ended
            or not self.moments.begin_fetch()
        ):
            return next_batch(*args)
        self._fetching = True
        try:
            batch = next_batch(*args)
        finally:
            self._fetching = False
        # Nothing is trained on one that is fetched in an evaluation.
        self.moments.end_fetch(count_samples(batch) if torch.is_grad_enabled() else 0)
        return batch

    def log(self, name: str, value: float | torch.Tensor) -> None:
        """A metric of the step under way, or of the one that has just been made."""
        if isinstance(value, torch.Tensor):
            if value.numel() != 1:
                shape = tuple(value.shape)
                raise ValueError(f"log: found {name!r} of shape {shape}; allowed: one number")
            # A sum that goes on is written into; on a CPU nothing has to be waited for.
            value = float(value.item()) if value.is_cpu else value.detach().clone()
        self._logged[logged_name(name)] = value

    def note(self, what: str, why: str) -> None:
        """Something about this training that its figures do not show."""
        self._missing[what] = why

    def _on_optimizer(self, optimizer: Optimizer) -> None:
        if self._has_ended:
            return
        if id(optimizer) not in self.moments.optimizers:
            self._find_models(optimizer)
            if hasattr(optimizer, "found_inf"):
                self._missing["skipped steps"] = (
                    f"{type(optimizer).__name__} skips steps of a GradScaler by itself, on the GPU"
                )
        if self.moments.unseen:
            self.models.look_again()
        if self.moments.unseen > _UNSEEN_UP_TO:
            self.models.start_over()
            self._before = self._fingerprint()
            self.moments.go_alone()  # and the next step begins
        if self.moments.is_due and self.is_at_end:
            if self.moments.alone:  # no forward comes at which it could end
                self.finish()
                self._leave()
            self._end_in_time()

    def _on_forward(
        self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        if self._has_ended:
            self._leave()
            return
        samples, scores, learns = 0, False, torch.is_grad_enabled()
        if learns:
            if tracing_state() is not None or (self._learns and backward_id() >= 0):
                return  # nothing is trained, or a checkpoint runs the same batch anew
            first = args[0] if args else None
            if type(first) is torch.Tensor and first.ndim:  # mostly: of anything else it takes long
                samples = first.shape[0]
            if not samples:
                samples = count_samples(args) or (count_samples(kwargs) if kwargs else 0)
                if type(samples) is not int:
                    return  # it is exported, with a symbol for the number
            if self.steps.batch_shape is None:
                self.steps.batch_shape = first_shape(args) or first_shape(kwargs)
        else:
            scores = not model.training
        self._learns = learns
        self.moments.begin_forward(id(model), samples, scores)
        if self._last is not None and self.steps.steps >= self._last:
            self.finish()
            self._leave()

    def _leave(self) -> None:
        """The records are whole: end the script."""
        raise RunEnds(0)

    def _beat(self, *_: object) -> None:
        """Called from the recording thread: nobody looks more often than it does."""
        steps = self.steps.steps
        if steps != self._beaten:  # else it may hang
            self._beaten = steps
            self._heartbeat.beat(steps, 0 if self._is_uncounted else self.steps.samples)

    @property
    def _is_uncounted(self) -> bool:
        return self.moments.uncounted > _UNCOUNTED_UP_TO * self.steps.steps

    def _on_step(self) -> None:
        """A step was ended; the training thread is about to fetch or to run a model."""
        steps = self.steps.steps
        try:
            if steps >= self._looks_after:
                self._look_around(steps)
            if self._logged:
                self._metrics.append(0, self._place.world_size, self._logged)
                self._logged = {}
            if self._has_ended:
                return
            if self._length is not None:
                self._last = self._length.settle()
        except (OSError, TooLateError) as error:
            self._give_up(error)
        looks = self.moments.divides or self.losses.is_due
        if looks != self._looks:
            self._looks = looks
            self.look_at_backward(looks)

    def _look_around(self, steps: int) -> None:
        """After the step whose loss is kept and the one before, and after each of the first."""
        self.losses.end_step()
        every = self._metrics.every_n_steps
        self._looks_after = steps + max(1, every - 1 - steps % every)
        if self._has_ended:
            return
        self._background.check()
        if steps <= self._begins_until:
            self._looks_after = steps + 1
            self._begin_timing(steps)

    def _begin_timing(self, steps: int) -> None:
        if steps < self.steps.warmup_steps:
            self._core_meter.begin()
        elif steps == self.steps.warmup_steps:
            self._run_queue.begin(steps)
        if steps == _LOOKED_AT:
            for fault in self._faults():
                self._give_up(ConfigError(f"{self._task.name}: {fault}"))

    def _faults(self) -> Iterator[str]:
        """Why nothing sound can be told of this script."""
        rank, ranks, share = self._place.rank, self._ranks, share_of(self.sampler)
        met = dist.is_available() and dist.is_initialized()
        if (met or ranks > 1) and (not met or dist.get_world_size() != ranks):
            group = f"a process group of {dist.get_world_size()}" if met else "no process group"
            alone = f"each of {ranks} processes trains alone"
            so = alone if ranks > 1 else "it trains with ranks that it started itself"
            yield (
                f"found {group} after {_LOOKED_AT} steps, so {so}; allowed: a script that torchrun "
                "starts (init_process_group and DDP; Lightning: "
                "Trainer(devices=WORLD_SIZE, strategy='ddp'))"
            )
        if self._task.rehearsed is not None and not self._watches:
            yield (
                f"found no DistributedDataParallel after {_LOOKED_AT} steps; allowed under "
                "--rehearse: a script that wraps its model in one"
            )
        if share is not None and share[1] == ranks and share[0] != rank:
            yield (
                f"found a sampler for rank {share[0]} of {ranks} on rank {rank}, so ranks feed the "
                "same samples; allowed: the rank that torchrun names (RANK)"
            )

    def plan_steps(self, steps: int) -> None:
        """The last step is known now."""
        self._last, self.moments.tells_all = steps, True
        self._heartbeat.plan(steps)

    # The end

    def _give_up(self, error: BaseException) -> None:
        """End this script with an error that is recorded, on the thread that trains."""
        self.fail(error)  # whoever supervises ends a script that goes on
        raise RunEnds(1)

    def _give_up_now(self, error: BaseException) -> None:
        """The same on any other thread, while the one that trains may wait for ever."""
        self.fail(error)
        os._exit(1)

    def fail(self, error: BaseException) -> None:
        """Record what ends this script, unless it has ended."""
        with self._ending:
            if self._has_ended:
                return
            self._has_ended = True
            self.folder.save_rank_error(ending_of(error, self._place.rank))
            self._background.abandon()
            self._close()

    @property
    def is_at_end(self) -> bool:
        """Whether its last step is done, after which other ranks may be gone."""
        return self._has_ended or (
            self._last is not None and self.steps.steps + self.moments.is_due >= self._last
        )

    def _end_in_time(self) -> None:
        def end() -> None:
            with contextlib.suppress(Exception):  # the records are whole, or were never to be
                self.finish(looks=False)
            os._exit(0)

        timer = threading.Timer(GRACE_S, end)
        timer.daemon = True
        timer.start()

    def finish(self, looks: bool = True) -> None:
        """Write what is left and the summary: the script is over, or is about to be ended.

        ``looks`` at the parameters, which waits for the device.
        """
        with self._ending:
            if self._has_ended:
                return
            self._has_ended = True
            if self.moments.is_due:
                self.moments.end_due_step()
            measured = host_figures(self._core_meter, self._run_queue, self.steps)
            if self._logged:
                self._metrics.append(0, self._place.world_size, self._logged)
            self._background.stop()
            self._save_shard()
            self.folder.save_rank(self._summary(looks, measured))
            self._close()
            self.note_late()

    def _close(self) -> None:
        self.steps.close()
        self._metrics.close()

    def _fingerprint(self) -> tuple[float, float] | None:
        # In the models' order: an optimizer may hold another part of them on each rank.
        return parameter_fingerprint(self._trained().values(), self._device)

    def _save_shard(self) -> None:
        """Keep which samples this rank fed, where that is known; else why nobody checks it."""
        ranks, share = self._ranks, share_of(self.sampler)
        if ranks == 1:
            return
        shard, why = None, f"the sampler divides among {ranks} ranks"
        if share is None or share[1] != ranks:
            why = "no sampler told of ranks, so each may have fed all of the data"
        elif self._task.rehearsed is None:
            shard = drawn_shard(self.sampler, self._place.rank, self.steps.samples)
        if shard is not None:
            write_shard(self.folder.shard_path(self._place.rank), shard)
            return
        self._missing["shard_audit"] = why

    def _trained(self) -> dict[int, torch.Tensor]:
        trained: list[torch.Tensor] = [p for model in self.models.found for p in model.parameters()]
        if not trained:
            groups = (group for o in self.moments.optimizers.values() for group in o.param_groups)
            trained = [one for group in groups for one in group["params"]]
        return {id(one): one for one in trained}

    def _summary(self, looks: bool, measured: Mapping[str, Any]) -> RankSummary:
        steps, optimizers = self.steps, tuple(self.moments.optimizers.values())
        after = self._fingerprint() if looks and steps.steps else None
        if unlike := self.moments.fed_unlike_fetched:
            said = "models were given {:,} samples a step, which count, and loaders gave {:,}"
            self._missing["sample count"] = said.format(*unlike)
        if self._is_uncounted:
            self._missing[UNCOUNTED] = (
                f"nothing told the samples of {self.moments.uncounted:,} of {steps.steps:,} steps "
                "(a model called outside of compiled functions, or a DataLoader of tensors, does)"
            )
        return summarise(
            self.rank.rank,
            self.rank.local_rank,
            self.rank.device,
            steps,
            self._metrics,
            self._trained().values(),
            optimizers,
            epochs_completed=0,
            flops_per_sample=None,
            own_batches=True,
            rehearsed=self._task.rehearsed,
            own_optimizer=class_names(optimizers),
            loader_batch_size=getattr(self.sampler, "batch_size", None),
            metrics=self._metrics.final,
            missing={**self._missing, **steps.missing},
            communication=steps.gradients.record(steps.steps - steps.warmup_steps),
            parameters_changed=after != self._before if after and self._before else None,
            replica_fingerprint=after if self._place.world_size > 1 else None,
            execution=ExecutionRecord("eager", "eager"),
            length=None if self.length is None else self.length(),
            **measured,
        )


def share_of(sampler: object) -> tuple[int, int] | None:
    """The rank for which a sampler draws, and of how many; None where it tells nothing of ranks."""
    # Torch's DistributedSampler is asked by a batch sampler; Accelerate's is one itself.
    for one in (sampler, getattr(sampler, "sampler", None)):
        for rank, ranks in (("rank", "num_replicas"), ("process_index", "num_processes")):
            found = getattr(one, rank, None), getattr(one, ranks, None)
            if isinstance(found[0], int) and isinstance(found[1], int):
                return found[0], found[1]
    return None


MOST_AUDITED: Final = 10_000_000
"""Samples of a data set, from which on listing them anew takes seconds and gigabytes."""


def drawn_shard(sampler: object, rank: int, fed: int) -> ShardIndices | None:
    """The first ``fed`` samples that torch's sampler gives ``rank`` in epoch 0, listed anew.

    None for another sampler: to list its samples may change those that it draws next.
    """
    torchs: Any = copy.copy(getattr(sampler, "sampler", sampler))
    if getattr(type(torchs), "__iter__", None) is not DistributedSampler.__iter__:
        return None
    if len(torchs.dataset) > MOST_AUDITED:
        return None
    torchs.set_epoch(0)  # one rank may have begun another than the others
    indices = np.fromiter(torchs, np.int64)
    return ShardIndices(rank, indices[:fed], len(torchs.dataset), fed >= len(indices))


def steps_before(optimizer: Optimizer, own: int) -> int:
    """Steps but its last ``own``, as far as the optimizer's state counts them as torch's own do."""
    state: Any = next(iter(optimizer.state.values()), {})
    step = state.get("step") if isinstance(state, dict) else None
    if isinstance(step, torch.Tensor) and step.numel() == 1:
        step = step.item()
    return max(0, int(step) - own) if isinstance(step, (int, float)) else 0


def first_parameter(optimizer: Optimizer) -> torch.Tensor:
    first: torch.Tensor = optimizer.param_groups[0]["params"][0]
    return first
