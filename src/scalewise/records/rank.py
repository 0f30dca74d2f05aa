"""What one rank did, and what it died of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeInt

from scalewise.records.communication import CommunicationRecord
from scalewise.records.execution import ExecutionRecord
from scalewise.records.files import Rank, UnixTime
from scalewise.records.fp8 import Fp8Record
from scalewise.records.pipeline import PipelineRecord
from scalewise.records.provenance import DeviceInfo


@dataclass(frozen=True)
class RankSummary:
    """What one rank did, counted while it ran. None is "not known", never zero."""

    rank: Rank
    local_rank: Rank
    pid: int
    device: DeviceInfo
    parameters_total: NonNegativeInt
    """Counted from the live module."""
    parameters_trainable: NonNegativeInt
    steps_completed: NonNegativeInt
    """Optimizer steps, warm-up included."""
    samples_fed: NonNegativeInt
    """Samples this rank fed to its replica, warm-up included."""
    epochs_completed: NonNegativeInt
    gradient_bytes: int | None
    """Bytes reduced in one step under DDP; None where nothing is reduced."""
    gradient_buckets: int | None
    flops_per_sample: Annotated[float, Field(ge=0, le=1e30)] | None
    """The model's declared count, forward and backward of one sample; None if it declares none."""
    peak_allocated_mib: float | None
    """The CUDA allocator's peak; None on a CPU host."""
    peak_reserved_mib: float | None
    allocation_retries: int | None
    peak_rss_mib: float
    """Peak resident set of this process."""
    metrics: Mapping[str, float | None]
    """The last value of each metric; None is "not a finite number"."""
    step_rows: NonNegativeInt
    metric_rows: NonNegativeInt
    resumed_at_step: int | None = None
    """Steps done by an earlier try, from whose checkpoint this one went on: no times of theirs
    are here. None for a run from the start."""
    largest_step_samples: int | None = None
    """Samples of the recorded step that fed most; None in older records."""
    steps_without_loss: int | None = None
    """Steps of this try whose batches gave no loss, and so no gradient: they trained nothing. None
    where a module optimizes by hand or nothing optimizes, and in older records."""
    loader_batch_size: int | None = None
    """Samples of a batch as this rank's loader says itself; None where it does not, and in older
    records."""
    batch_shape: tuple[int, ...] | None = None
    """Of the first tensor of the first batch: its first dimension is counted as samples."""
    parameters_changed: bool | None = None
    """Whether any trainable parameter is another than before the first step; None where nothing
    optimizes, where ranks hold parts of the model, and in older records."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Series that could not be taken, and why."""
    data_shard: Rank | None = None
    """Which part of each global batch it fed: samples of ranks that share one count once. None: a
    part of its own."""
    probed_samples_per_s: float | None = None
    """Forward and backward of its device alone, measured before training to share out batches; None
    where nobody asked."""
    communication: CommunicationRecord | None = None
    """What it gave to collectives; None where it trained alone or nothing could count it."""
    run_queue_ms_per_step: float | None = None
    """Mean ms a timed step in which the training thread was ready to run and had no core."""
    other_threads_cpu_ms_per_step: float | None = None
    """Mean CPU ms a timed step of the rank's other threads: they may have held that core."""
    optimizer_state_bytes: int | None = None
    """Bytes of optimizer state on this rank after the last step; None where nothing optimizes."""
    own_optimizer: str | None = None
    """Class of the optimizer that a user's LightningModule built itself, several joined by ``+``,
    ``none`` where it built none; None where the configuration's was used."""
    pruned_share: float | None = None
    """Share of the prunable weights that are 0 at the end, 0 to 1; None where nothing prunes."""
    pruning_state_bytes: int | None = None
    """Bytes of masks and scores on this rank; None where nothing prunes."""
    pipeline: PipelineRecord | None = None
    """Its stage and schedule; None where there is no pipeline."""
    execution: ExecutionRecord | None = None
    """How its steps were really executed; None in records older than this entry."""
    fp8: Fp8Record | None = None
    """Which linear layers multiplied in fp8; None where none did."""

    FORMER_KEYS: ClassVar[frozenset[str]] = frozenset({"standstills", "loader_samples_per_step"})


@dataclass(frozen=True)
class RankError:
    """What a rank died of, written by the rank itself before it goes."""

    rank: Rank
    time: UnixTime
    """Unix time at which the error surfaced: the earliest rank is the culprit."""
    kind: Literal["exception", "oom", "config", "disk"]
    message: str
    """One line."""
    traceback: str
