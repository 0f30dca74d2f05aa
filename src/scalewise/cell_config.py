"""One cell, typed: everything its processes need to know, and which of it may stand together.

The parts of it stand beside the classes that they configure. Building one raises ValueError for
whatever types alone cannot refuse; :mod:`scalewise.config` says it as a ConfigError.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from scalewise.components import Component
from scalewise.datasets.loader import LoaderConfig
from scalewise.errors import ConfigError
from scalewise.hardware import HardwareConfig
from scalewise.optimizers.pruning_schedule import NO_PRUNING, PruningConfig
from scalewise.policies import MonitorConfig, SweepConfig
from scalewise.tracking.config import TrackingConfig
from scalewise.train.batch_config import DEFAULT_SEARCH, BatchSearchConfig, check_search
from scalewise.train.checkpoint_config import NO_CHECKPOINTS, CheckpointConfig
from scalewise.train.execution import ExecutionConfig
from scalewise.train.precision import PrecisionConfig
from scalewise.train.profiling import DEFAULT_PROFILE, ProfileConfig
from scalewise.train.strategies import StrategyConfig

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
    batch_size: PositiveInt | Literal["auto"]
    """``auto``: the largest that fits on every device, which a search finds before the cell."""
    scaling: Literal["strong", "weak"]
    max_steps: Annotated[int, Field(le=MAX_STEPS)] | None
    max_epochs: Annotated[int, Field(ge=1, le=MAX_STEPS)] | None
    warmup_steps: NonNegativeInt
    repeats: PositiveInt | Literal["auto"]
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)]
    deterministic: bool
    validation: Literal["end", "epoch", "never"]
    log_every_n_steps: PositiveInt
    gradient_clip_norm: PositiveFloat | None
    monitor: MonitorConfig
    sweep: SweepConfig
    precision_percent: Annotated[float, Field(gt=0, le=100)] = 2.0
    max_repeats: Annotated[int, Field(ge=FEWEST_ADAPTIVE_REPEATS)] = 50
    accumulate_grad_batches: PositiveInt = 1
    pruning: PruningConfig = NO_PRUNING
    profile: ProfileConfig = DEFAULT_PROFILE
    workload: Literal["train", "doctor", "find_batch"] = "train"
    """``doctor``: examine the devices of the cell as ``scalewise doctor`` does, train nothing;
    ``find_batch``: try which batch sizes fit on them."""
    batch_search: BatchSearchConfig = DEFAULT_SEARCH
    checkpoint: CheckpointConfig = NO_CHECKPOINTS
    fault: Component | None = None
    """A Lightning callback that spoils the run on purpose (``benchmarks/faults``)."""

    def __post_init__(self) -> None:
        if self.batch_size == "auto":
            check_search(self.strategy.name, self.strategy.kind)
        elif self.workload == "find_batch":
            raise ValueError(
                f"batch_size: found {self.batch_size} with workload=find_batch; allowed: auto"
            )
        if self.max_steps is None and self.max_epochs is None:
            raise ValueError("max_steps: found null, and max_epochs is null too; give one of them")
        if self.max_steps is not None and self.max_steps <= self.warmup_steps:
            raise ValueError(
                f"max_steps: found {self.max_steps} with warmup_steps={self.warmup_steps}; "
                f"allowed: {self.warmup_steps + 1} or more, so that a step is left to time"
            )
        self.strategy.check(self)
        self.checkpoint.check(self.strategy.kind, self.execution.kind)
        self.execution.check(self)
        self.precision.check(self)
        if self.model.target.startswith("scalewise."):  # a LightningModule has its own optimizer
            self.pruning.check(self.optimizer.target, self.optimizer.name)
        if self.strategy.devices != "auto":
            self.per_device_batch_size(self.strategy.devices)

    @property
    def is_timed(self) -> bool:
        """Whether its steps are timed: not under a profiler, and not if none are taken."""
        return self.workload == "train" and not self.profile.profiles

    def per_device_batch_size(self, devices: int) -> int:
        """Samples the device with most of them feeds in one batch of one optimizer step's.

        Raises ConfigError where this strategy cannot share them among as many devices.
        """
        return max(self.shard_batch_sizes(devices))

    def shard_batch_sizes(self, devices: int) -> tuple[int, ...]:
        """Samples of each part into which the strategy cuts a batch, in the order of parts.

        Raises ConfigError where this strategy cannot share them among as many devices.
        """
        try:
            self.strategy.check_world(devices)
            return self.strategy.share_out(self.batch_of(devices), devices)
        except ValueError as error:
            raise ConfigError(str(error)) from error

    def batch_of(self, devices: int) -> int:
        """Samples of one batch of all devices; while ``auto`` is not found, one of each."""
        if self.batch_size == "auto":
            return devices
        return self.batch_size if self.scaling == "strong" else self.batch_size * devices

    def global_batch_size(self, devices: int) -> int:
        """Different samples that all devices together feed for one optimizer step."""
        return sum(self.shard_batch_sizes(devices)) * self.accumulate_grad_batches
