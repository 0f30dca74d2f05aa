"""One cell, typed: everything its processes need to know, and which of it may stand together.

Building one raises ValueError for what types alone cannot refuse.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, get_args

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from scalewise.config.components import OWN_LOADERS, Component
from scalewise.config.data_parallel import StrategyConfig
from scalewise.config.errors import ConfigError, refuse_as, require
from scalewise.config.execution import (
    DEFAULT_PROFILE,
    ExecutionConfig,
    PrecisionConfig,
    ProfileConfig,
)
from scalewise.config.hardware import HardwareConfig
from scalewise.config.rehearsal import NO_REHEARSAL, RehearseConfig
from scalewise.config.script import ScriptConfig
from scalewise.config.training import Mode, SchedulerConfig, Validation, check_training, no_mode
from scalewise.host import wrap_command


@dataclass(frozen=True)
class LoaderConfig:
    """Settings of PyTorch's DataLoader that change speed and nothing else.

    All but the first mean something only where there are workers or a GPU; elsewhere they are
    passed over, so that one configuration fits every host.
    """

    num_workers: Annotated[int, Field(ge=0, le=256)] = 0
    """Processes that fetch batches for each rank; 0 fetches in the training process."""
    pin_memory: bool = True
    """Copy batches to page-locked memory first. Only where the device is a GPU."""
    persistent_workers: bool = True
    """Keep the workers, if any, from one epoch to the next."""
    prefetch_factor: PositiveInt = 2
    """Batches each worker keeps ready."""
    device_prefetch: Annotated[int, Field(ge=0, le=64)] = 0
    """Batches copied to the GPU ahead of their step, on a stream of their own; 0 copies each when
    its step asks for it."""
    device_resident: bool = False
    """Keep the whole data set in the GPU's memory and pick batches there: for sets of tensors."""

    def __post_init__(self) -> None:
        reach = not (self.device_resident and self.num_workers)  # workers reach no data on a GPU
        require("num_workers", self.num_workers, reach, "0", "device_resident=true")


@dataclass(frozen=True)
class MonitorConfig:
    """The key ``monitor``: what is sampled beside training."""

    devices: bool = True
    """Sample GPUs or, on a host without any, the ranks' processes."""
    interval_s: Annotated[float, Field(ge=0.1, le=60)] | None = None
    """Seconds between two samples. None: :meth:`CellConfig.sample_every_s` says."""
    seed_format: bool = False
    """Write the earlier GPU monitor's two JSON files too, into the cell while it trains."""


_FEW_STEPS = 500
"""Timed steps of small models that may take less than a second: it needs samples close together."""


@dataclass(frozen=True)
class MeasureConfig:
    """The key ``measure``: how long a cell is timed where nobody says how many steps it trains."""

    min_time_s: Annotated[float, Field(ge=0.1, le=86400)] | None = None
    """Seconds of timed steps that a run has at least: rank 0 tells the last step by their pace.
    None for as many as the device needs, and where steps or epochs were asked for."""


DEFAULT_MEASURE = MeasureConfig()
_LONGEST_COLLECTIVE_S = 30 * 24 * 3600
"""A month; torch turns the time into one that much larger numbers do not fit."""
DEFAULT_OBJECTIVE = "val_loss"
MAX_CELLS = 100_000
"""The most cells of a sweep, repeats included: a slip of the finger is not multiplied out."""
TOO_MANY_CELLS = f"sweep: found {{}} cells; allowed: at most {MAX_CELLS:,}; narrow the sweep"


@dataclass(frozen=True)
class SweepConfig:
    """The key ``sweep``: how cells are run. It never changes what a cell's result is."""

    resume: str | None = None
    """Folder of a sweep to finish."""
    order_seed: int = 0
    """Seed of the shuffle of cells and repeats."""
    objective: str = DEFAULT_OBJECTIVE
    """The metric a cell returns to Hydra's sweeper, any that is logged, or
    ``global_samples_per_s``. A sweep ends with its rows ranked by it."""
    mode: Mode | None = None
    """Whether the smaller or the larger objective is the better one; None: as its name says."""
    timeout_s: PositiveFloat | None = None
    """Wall time after which a cell is ended; None for no limit."""
    hang_timeout_s: PositiveFloat = 600.0
    """Time without a step after which a cell counts as hung."""
    start_timeout_s: PositiveFloat = 600.0
    """Time until the first sign of every rank: imports, building the model, loading the data."""
    collective_timeout_s: Annotated[float, Field(ge=1, le=_LONGEST_COLLECTIVE_S)] = 300.0
    """How long a rank waits in a collective for the others, the meeting at the start included: the
    process group's time-out, for NCCL and gloo. Shorter than ``hang_timeout_s``, so that whoever
    did not come is named by those who did."""
    retries: Annotated[int, Field(ge=0, le=10)] = 1
    """Further tries at a cell whose fault another try can mend. One: what comes back at once is
    no accident, and a night must not go into it."""
    budget_min: PositiveFloat | None = None
    """Minutes of one command within which ``repeats=auto`` adds rounds, beyond the first three.
    None: :data:`DEFAULT_BUDGET_MIN` where ``repeats`` was left out too, else no limit."""
    foreign_wait_s: NonNegativeFloat = 3600.0
    """How long a cell waits for GPUs that other people's processes hold, before it is skipped."""
    expected_devices: PositiveInt | None = None
    """Devices the configuration was made for: another number is used all the same, and said."""
    wrap: str | None = None
    """Command that runs each rank's, as typed in ``hydra.launcher.wrap``: a profiler. ``{rank}``,
    ``{local_rank}`` and ``{folder}`` (the cell's) are filled in."""
    grace_s: Annotated[float, Field(ge=0, le=8)] = 5.0
    """Time between SIGTERM and SIGKILL."""
    dry_run: bool = False
    """Print what would run, and run nothing."""
    rerun: str | None = None
    """With ``resume``: run only ``failed`` cells, ``all`` again, or those whose name matches."""
    extend: NonNegativeInt = 0
    """With ``resume``: repeats to add to those that the folder has of each configuration."""
    allow_mixed: bool = False
    """With ``resume``: add results of other code or other devices than those already there."""

    def __post_init__(self) -> None:
        why = "" if self.mode else no_mode(self.objective)
        require("mode", self.mode, not why, f"min or max: {why}")
        if self.wrap is not None:
            wrap_command(self.wrap, 0, 0, "")


TrackerName: TypeAlias = Literal["trackio", "wandb"]
TRACKERS: tuple[TrackerName, ...] = get_args(TrackerName)


def default_project() -> str:
    """``WANDB_PROJECT``, or the name of the folder that one works in."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", Path.cwd().name).lstrip("._-")[:_LONGEST_PROJECT]
    return os.environ.get("WANDB_PROJECT") or name or "scalewise"


_LONGEST_PROJECT = 100
"""Letters of a folder's name that make a project's."""


@dataclass(frozen=True)
class TrackingConfig:
    """The config group ``tracking``: which trackers get the records, and how."""

    name: str = "both"
    """The option of the group: ``both``, ``trackio``, ``wandb`` or ``none``."""
    trackers: tuple[TrackerName, ...] = TRACKERS
    """The mirrors; none of them is ever the source of a number."""
    project: Annotated[str, Field(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")] = "scalewise"
    """The project in both trackers; typed none is :func:`default_project`."""
    wandb_mode: Literal["auto", "offline", "online"] = "auto"
    """``auto`` is online if the user is logged in, else offline; ``WANDB_MODE`` goes before it."""
    entity: str | None = None
    """WandB's user or team; None for the one the user is logged in as."""
    tags: tuple[str, ...] = ()
    """Tags beside those of the cell itself (model, dataset, strategy, precision, ...)."""
    system_interval_s: Annotated[float, Field(ge=0.1, le=3600)] = 1.0
    """Device samples closer together than this are thinned out for the trackers."""

    def __post_init__(self) -> None:
        distinct = len(set(self.trackers)) == len(self.trackers)
        require("trackers", list(self.trackers), distinct, "each once")


DEFAULT_BUDGET_MIN = 10.0
"""Minutes after which a sweep that nobody told how often to repeat adds no more rounds."""
FEWEST_ADAPTIVE_REPEATS = 3
"""Runs of ``repeats=auto`` before the data are looked at: fewer have no interval worth the name."""
MAX_SEED = 2**32 - 1
"""The largest that NumPy, and so Lightning's ``seed_everything``, takes."""
MAX_STEPS = 10**12
"""Thirty years at a millisecond a step: more is a slip of the finger."""


@dataclass(frozen=True)
class CellConfig:
    """One cell: everything its processes need to know."""

    model: Component
    dataset: Component
    loader: LoaderConfig
    optimizer: Component
    strategy: StrategyConfig
    hardware: HardwareConfig
    precision: PrecisionConfig
    execution: ExecutionConfig
    tracking: TrackingConfig
    batch_size: PositiveInt
    scaling: Literal["strong", "weak"]
    max_steps: Annotated[int, Field(le=MAX_STEPS)] | None
    max_epochs: Annotated[int, Field(ge=1, le=MAX_STEPS)] | None
    warmup_steps: NonNegativeInt
    repeats: PositiveInt | Literal["auto"] | None
    """None: until decided where numbers of devices are compared by time, else once."""
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)]
    deterministic: bool
    validation: Validation
    log_every_n_steps: PositiveInt
    gradient_clip_norm: PositiveFloat | None
    monitor: MonitorConfig
    sweep: SweepConfig
    precision_percent: Annotated[float, Field(gt=0, le=100)] = 2.0
    max_repeats: Annotated[int, Field(ge=FEWEST_ADAPTIVE_REPEATS)] = 20
    accumulate_grad_batches: PositiveInt = 1
    profile: ProfileConfig = DEFAULT_PROFILE
    measure: MeasureConfig = DEFAULT_MEASURE
    scheduler: SchedulerConfig | None = None
    callbacks: Mapping[str, Component] = field(default_factory=dict)
    """By name, in the order in which they act."""
    ckpt_path: str | None = None
    """A checkpoint of Lightning's from which the run starts."""
    test: bool = False
    """Score the test set when training is over."""
    trainer: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of Lightning's Trainer."""
    fault: Component | None = None
    """A Lightning callback that spoils the run on purpose (``benchmarks/faults``)."""
    rehearse: RehearseConfig = NO_REHEARSAL
    """Read before it is a cell's: one that is rehearsed has a strategy of its own."""
    script: ScriptConfig | None = None
    """The program of each rank, where that is a script of the user's: what model, data and
    optimizer say is then its matter."""

    def __post_init__(self) -> None:
        self._check_steps()
        self._check_combinations()
        check_training(self)
        self.strategy.check(self)
        ours = self.data_source.target.startswith("scalewise.")
        if ours and self.strategy.devices != "auto":  # others decide on their batches
            self.per_device_batch_size(self.strategy.devices)

    def _check_steps(self) -> None:
        """Steps must end by one rule, and one must be left to time."""
        time_s, epochs = self.measure.min_time_s, self.max_epochs
        typed = f"max_steps={self.max_steps}" if epochs is None else f"max_epochs={epochs}"
        require(
            "measure.min_time_s", time_s, not (self.is_counted and time_s is not None),
            "one rule that ends a run: null, or max_steps=null max_epochs=null", typed,
        )  # fmt: skip
        preparing = self.execution.preparing_steps(1 if self.strategy.kind == "single" else 2)
        for untimed, beside in (
            (self.warmup_steps, f"warmup_steps={self.warmup_steps}"),
            (preparing, f"execution={self.execution.name}"),
        ):
            left = self.max_steps is None or self.max_steps > untimed
            require("max_steps", self.max_steps, left, f"{untimed + 1} or more", beside)

    def _check_combinations(self) -> None:
        """Settings of different groups that do not go together; strategies have their own."""
        whole = self.strategy.kind in ("single", "ddp", "auto")  # the same model on every rank
        tries, data = self.execution.cudnn_benchmark, self.data_source.target
        for key, found, holds, allowed, beside in (
            ("test", self.test, not self.test or whole,
             "strategy=single or ddp", f"strategy={self.strategy.name}"),
            ("test", self.test, not (self.test and data.startswith("scalewise.")),
             "false, or a dataset of your own with a test set", f"dataset={self.dataset.name}"),
            # cuDNN takes whichever algorithm is the fastest that day.
            ("execution.cudnn_benchmark", tries, not (tries and self.deterministic),
             "one of them", "deterministic=true"),
        ):  # fmt: skip
            require(key, found, holds, allowed, beside)

    @property
    def components(self) -> dict[str, Component]:
        """Every class that it names, by the key that names it; none of a script."""
        if self.script is not None:
            return {}
        named = {"model": self.model, "dataset": self.dataset, "optimizer": self.optimizer}
        if self.scheduler is not None:
            named["scheduler"] = self.scheduler.component_for(1)
        return named | {f"callbacks.{name}": one for name, one in self.callbacks.items()}

    @property
    def data_source(self) -> Component:
        """What brings the data: the data set, or the model with loaders of its own."""
        return self.model if self.dataset.target == OWN_LOADERS else self.dataset

    @property
    def is_counted(self) -> bool:
        """Whether a number of steps or epochs ends it, and not the time of its steps."""
        return self.max_steps is not None or self.max_epochs is not None

    def unscored(self, *, at_end: bool = False) -> str:
        """By which setting nothing is scored while it trains, or ``at_end``; else empty."""
        is_late, when = self.validation == "end" and not at_end, "end" if at_end else "epoch"
        never = self.validation == "never" and self.script is None
        is_operation = self.model.target.startswith("scalewise.operations.")
        held_out, given = ("validation_fraction", "validation_samples"), self.dataset.arguments
        ours = all(one.target.startswith("scalewise.") for one in (self.model, self.dataset))
        for found, holds, allowed in (
            (f"validation={self.validation}", is_late or never, f"validation={when}"),
            ("trainer.limit_val_batches=0", self.trainer.get("limit_val_batches") == 0, "above 0"),
            (f"model={self.model.name}", is_operation, "a model that learns"),
            *((f"dataset.{key}=0", ours and given.get(key) == 0, "above 0") for key in held_out),
        ):
            if holds:
                scores = "after training" if found == "validation=end" else "nothing"
                then = "if it is logged then, or a metric of another name"
                return f"{found}, which scores {scores}; allowed: {allowed}, {then}"
        return ""

    @property
    def sample_every_s(self) -> float | None:
        """Seconds between two samples of the devices; None where none are taken."""
        if not self.monitor.devices:
            return None
        if self.monitor.interval_s is not None:
            return self.monitor.interval_s
        few = self.max_steps is not None and self.max_steps - self.warmup_steps <= _FEW_STEPS
        return 0.1 if few else 1.0

    @property
    def ends_by_time(self) -> bool:
        """Whether the time of its timed steps ends it, and no number of them."""
        return not (self.profile.profiles or self.is_counted)

    def per_device_batch_size(self, devices: int) -> int:
        """Samples the device with most of them feeds in one batch of one optimizer step's.

        Raises ConfigError where this strategy cannot share them among as many devices.
        """
        return max(self.shard_batch_sizes(devices))

    def shard_batch_sizes(self, devices: int) -> tuple[int, ...]:
        """Samples of each part into which the strategy cuts a batch, in the order of parts.

        Raises ConfigError where this strategy cannot share them among as many devices.
        """
        ranks = self.strategy.team(devices)
        with refuse_as():
            return self.strategy.share_out(self.batch_of(ranks), ranks)

    def batch_of(self, devices: int) -> int:
        """Samples of one batch of all devices."""
        return self.batch_size if self.scaling == "strong" else self.batch_size * devices

    def global_batch_size(self, devices: int) -> int:
        """Different samples that all devices together feed for one optimizer step."""
        return sum(self.shard_batch_sizes(devices)) * self.accumulate_grad_batches


def check_samples(cell: CellConfig) -> None:
    """Refuse a batch that is larger than the data set, where an argument of ours says its size.

    Raises :class:`ConfigError`. Ranks know what is held out of it, and every other data set.
    """
    dataset, devices = cell.dataset, cell.strategy.devices
    samples = dataset.arguments.get("train_samples", dataset.arguments.get("samples"))
    if not dataset.target.startswith("scalewise.") or not isinstance(samples, int):
        return
    found = cell.batch_of(1 if devices == "auto" else devices) * cell.accumulate_grad_batches
    if found > samples:
        raise ConfigError(
            f"batch_size: found {found} samples a step, but dataset={dataset.name} has {samples}; "
            f"allowed: at most {samples}"
        )
