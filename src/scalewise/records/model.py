"""Records of ranks, of the place they ran at, of the end of a cell, its trackers and decisions."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from scalewise.host import CoreUse
from scalewise.records.files import Rank, UnixTime, WorldSize


@dataclass(frozen=True)
class CommunicationRecord:
    """Payload and time of one rank's collectives, on average for a timed optimizer step."""

    what: Literal["gradients", "parameters"]
    """Gradients are averaged before an optimizer steps, parameters after it has."""
    rounds_per_step: float
    """Times that all gradients (or parameters) were averaged. Above 1: more often than needed.
    1 / K where K steps share one."""
    payload_bytes_per_step: float
    """Bytes handed to the all-reduce, as compressed. A ring all-reduce over N ranks sends
    2 (N - 1) / N times as much over each link."""
    ms_per_step: float | None = None
    """Time the rank spent in it; None where the step records carry it as exposed communication."""


@dataclass(frozen=True)
class ExecutionRecord:
    """None is "not known" or "does not apply", never zero."""

    GONE: ClassVar[frozenset[str]] = frozenset({"prepare_s"})
    requested: str
    """``eager``, ``compile`` or ``cudagraph``."""
    ran: str
    """The same, after a fall-back: what the timed steps did."""
    fell_back_because: str | None = None
    """Why ``ran`` is not ``requested``; the same on every rank."""
    prepare_steps: int = 0
    """Steps that were taken before the way of executing was settled, all flagged as warm-up."""
    steps_per_batch: int = 1
    graphs: int | None = None
    """Graphs captured or compiled; None for eager steps."""
    graph_breaks: int | None = None
    """``compile``: places where the compiler handed back to Python."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Settings that were in force: activation checkpointing, memory cap, ..."""


@dataclass(frozen=True)
class LengthRecord:
    """How the last step of a run was found, where nobody had counted them before."""

    rule: Literal["min_time_s"]
    min_time_s: float
    """Seconds of timed steps that were asked for."""
    announced_step: int | None
    """The last step, as rank 0 announced it; None where training ended before."""
    announced_at_step: int | None
    """Steps this rank had done when it announced it, or learned of it."""


@dataclass(frozen=True)
class EarlyStop:
    """A run that somebody ended before the steps or epochs that were asked for."""

    GONE: ClassVar[frozenset[str]] = frozenset({"after_step", "value", "best", "why"})
    by: str
    """Class of the callback or module that asked for it."""
    epoch: PositiveInt
    """Counted from 1."""
    monitor: str | None = None
    """The metric it watched; None where it watched none."""


@dataclass(frozen=True)
class KeptCheckpoint:
    """The best checkpoint that a callback keeps."""

    by: str
    """Class of the callback."""
    path: str
    """Relative to the folder of the cell."""
    monitor: str | None
    """The metric it is the best by; None where it is the last one."""
    score: float | None
    """That metric; None where there is none, or where it is not finite."""


@dataclass(frozen=True)
class PipelineRecord:
    """The schedule one rank followed."""

    schedule: Literal["1f1b", "gpipe"]
    stages: int
    """Stages of the whole pipeline, one a device."""
    stage: int
    """This rank's, from 0."""
    microbatches: int
    """Parts of a replica's batch, one behind another."""


@dataclass(frozen=True)
class RehearsalRecord:
    """The ranks and the link that were emulated: nothing of this run was measured on them."""

    ranks: Annotated[int, Field(ge=2)]
    """All of them; this one was there."""
    link: str
    source: str
    """Where the times of the link are from."""


PROTOCOL = 3
"""How steps are timed now. 1: a thread of the recorder opened a context on GPU 0 from every other
rank, and stalled all ranks of a run on several GPUs. 2: the phases of every step were marked, at a
cost of 5 % where a GPU's step took 1.6 ms."""


@dataclass(frozen=True)
class DeviceInfo:
    """The device one rank ran on."""

    kind: Literal["cuda", "cpu"]
    name: str
    """``NVIDIA H200``, or the processor's model name."""
    uuid: str | None = None
    """The GPU's UUID; None on a CPU host."""
    index: int | None = None
    """NVML's index of the GPU on its host; None on a CPU host."""
    cores: tuple[int, ...] = ()
    """The CPU cores the rank was bound to."""
    memory_total_mib: float | None = None
    """The GPU's memory; None on a CPU host."""


@dataclass(frozen=True)
class Provenance:
    """Everything that a result depends on beside its configuration."""

    command: tuple[str, ...]
    host: str
    """Identity of the host, which does not name it: :func:`scalewise.host.host_id`. Twelve digits
    without a kind before them are the hash of the host's name, from before there were kinds; beside
    one with a kind it may be the same host."""
    platform: str
    python: str
    packages: Mapping[str, str]
    """Distribution name to version."""
    code: Mapping[str, Any]
    """What tells the code: :data:`SOURCE_SHA256`, and :data:`CLASS_FILES` where modules of the
    user's own were imported. For the reader, ``commit``, ``dirty`` and ``diff_sha256`` of
    scalewise's working tree; where it has none, those of the tree that the run started in, with
    :data:`WORKING_DIRECTORY` as ``tree``."""
    devices: tuple[DeviceInfo, ...]
    """One for each local rank."""
    driver: str | None
    cuda: str | None
    nccl: str | None
    environment: Mapping[str, str]
    """Those of :func:`scalewise.host.recorded_in`, as the ranks saw them."""
    usable_cores: int
    """Cores of the host, for all its cells; those of one rank are in ``devices``."""
    memory_limit_mib: float | None
    """The cgroup's memory limit; None where there is none."""
    shared_memory_mib: float | None
    """Size of /dev/shm; None where there is none."""
    emulated: tuple[str, ...]
    """Hardware that was made to look different, e.g. ``NCCL_P2P_DISABLE=1``."""
    topology: Mapping[str, str]
    """Link kind for each pair of GPUs, ``"0-1": "NV18"``."""
    peak_tflops: Mapping[str, Annotated[float, Field(gt=0, le=10**9)]]
    """Data sheet rate of one device for each precision; empty where no profile describes it."""
    peak_source: str | None
    """The document and date those rates are from."""
    data: Mapping[str, str]
    """Argument of the data set to the size and sum of the file it named; empty where none did."""
    started: Literal["fresh", "forked"]
    """``forked``: the ranks are forks of a process that had imported everything already."""
    not_forked: str | None
    """Why they are ``fresh``, in words; None where they are not, or where nothing was to fork."""
    protocol: int
    """As :data:`PROTOCOL` was for the process that recorded."""


@dataclass(frozen=True)
class RankSummary:
    """Counts of one rank, taken while it ran. None is "not known", never zero."""

    GONE: ClassVar[frozenset[str]] = frozenset(
        {"fp8", "probed_ratio", "probed_samples_per_s", "resumed_at_step"}
    )
    """Keys that kept records have, and nobody reads."""
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
    largest_step_samples: int | None = None
    """Samples of the recorded step that fed most; None where none was recorded."""
    usual_step_samples: int | None = None
    """Of nine steps of ten, else of that one: a loop may add what an epoch left over."""
    steps_without_loss: int | None = None
    """Steps of this try whose batches gave no loss, and so no gradient: they trained nothing. None
    where a module optimizes by hand or nothing optimizes."""
    loader_batch_size: int | None = None
    """Samples of a batch as this rank's loader says itself; None where it does not."""
    batch_shape: tuple[int, ...] | None = None
    """Shape of the first tensor of the first batch: its first dimension counts as samples."""
    parameters_changed: bool | None = None
    """Whether any trainable parameter is another than before the first step; None where nothing
    optimizes, or where ranks hold parts of the model."""
    replica_fingerprint: tuple[float, float] | None = None
    """After training, norm and projection on a fixed vector of the trainable parameters, which
    every rank has to have alike; None where it need not, or where they are not finite."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Series that could not be taken, and why."""
    data_shard: Rank | None = None
    """Which part of each global batch it fed: samples of ranks that share one count once. None: a
    part of its own."""
    communication: CommunicationRecord | None = None
    """Its collectives; None where it trained alone or nothing could count them."""
    run_queue_ms_per_step: float | None = None
    """Mean ms a timed step in which the training thread was ready to run and had no core."""
    other_threads_cpu_ms_per_step: float | None = None
    """Mean CPU ms a timed step of the rank's other threads: they may have held that core."""
    core_use: CoreUse | None = None
    """Who had its cores, from its last warm-up step to its last step."""
    optimizer_state_bytes: int | None = None
    """Bytes of optimizer state on this rank after the last step; None where nothing optimizes."""
    own_optimizer: str | None = None
    """Class of the optimizer that a user's LightningModule built itself, several joined by ``+``,
    ``none`` where it built none; None where the configuration's was used."""
    own_batches: bool = False
    """Whether loaders of the user's own made its batches, whatever was configured."""
    pipeline: PipelineRecord | None = None
    """Its stage and schedule; None where there is no pipeline."""
    rehearsed: RehearsalRecord | None = None
    """None where all ranks were there."""
    execution: ExecutionRecord | None = None
    length: LengthRecord | None = None
    """None where steps or epochs were asked for."""
    stopped: EarlyStop | None = None
    """Who ended it early; None where nobody did."""
    checkpoints: tuple[KeptCheckpoint, ...] = ()
    """The best one of each callback that keeps some."""
    callbacks_ms_per_step: Mapping[str, NonNegativeFloat] = field(default_factory=dict)
    """Mean ms that callbacks took of a timed step, by class; empty where none acted."""

    @property
    def is_counted(self) -> bool:
        """Whether it saw the samples of its steps."""
        return UNCOUNTED not in self.missing

    @property
    def step_samples(self) -> int:
        """Of its usual step; of the largest where records of earlier versions have that alone."""
        return self.usual_step_samples or self.largest_step_samples or 0


def sum_over_shards(fed: Sequence[int], data_shards: Sequence[int] | None) -> int:
    """Samples fed by all ranks, those of ranks that share a part of the data once."""
    return sum(dict(zip(data_shards or range(len(fed)), fed, strict=True)).values())


def data_shards_of(ranks: Sequence[RankSummary]) -> tuple[int, ...]:
    """The part of the data each rank fed, in the order of ranks."""
    ordered = sorted(ranks, key=lambda r: r.rank)
    return tuple(r.rank if r.data_shard is None else r.data_shard for r in ordered)


FRESH_START: Final = "fresh start"
"""Missing of a rank whose script goes on from a checkpoint: how far that is."""
UNCOUNTED: Final = "samples"
"""Missing of a rank that did not see the samples of its steps."""


def batch_sizes_of(ranks: Sequence[RankSummary]) -> tuple[int, int] | None:
    """Samples of the usual step, of the largest rank and of all ranks, as they were fed.

    None where a rank recorded no step or could not count samples. A user's LightningDataModule
    decides on its own.
    """
    fed = [one.step_samples if one.is_counted else 0 for one in ranks]
    return (max(fed), sum_over_shards(fed, data_shards_of(ranks))) if all(fed) else None


@dataclass(frozen=True)
class RunningAttempt:
    """A try under way. Its file is touched every second or so while its supervisor lives."""

    GONE: ClassVar[frozenset[str]] = frozenset({"pids"})
    number: PositiveInt
    """Counted from 1."""
    started_at: UnixTime
    devices: tuple[DeviceInfo, ...]
    """One a rank."""


State = Literal["done", "running", "failed", "skipped", "interrupted", "waiting"]
Cause = Literal[
    "exception", "oom", "config", "disk", "peer", "port", "device_busy", "device_broken",
    "late", "uneven_epochs", "signal", "exit", "timeout", "hang", "host", "supervisor",
    "supervisor_lost", "interrupted", "preempted", "launcher",
]  # fmt: skip
"""The cause that ended a try. ``peer`` to ``late`` are exceptions whose words name what came
from outside; ``supervisor`` ended by a fault of its own, a lost one was killed; ``launcher``
is a script that cannot start without torchrun's variables."""


@dataclass(frozen=True)
class Ending:
    """How a cell, or one try at it, ended: the cause for programs, the message for people.

    A rank that fails writes its own, and its supervisor one for the cell. Those of tries without a
    result are kept, as ``attempts/<number>.json``.
    """

    outcome: State
    """``running`` and ``waiting`` where it has not ended."""
    cause: Cause | None = None
    """None for a cell that is done, and where nobody knows."""
    message: str = ""
    """One line: what happened, and where to look."""
    rank: Rank | None = None
    """The rank that failed first; None when no rank is to blame."""
    exit_code: int | None = None
    """That rank's exit status; negative for the signal that ended it. The supervisor's own where
    that is the cause."""
    raised_at: str | None = None
    """``file:line`` of the user's code that was running, of ours where none of theirs was; None
    where nothing tells."""
    last_lines: tuple[str, ...] = ()
    """The end of that rank's stderr; of what it died of in the rank's own record."""
    number: PositiveInt | None = None
    """The try, counted from 1; None where it is not recorded."""
    started_at: UnixTime = field(default_factory=time.time)
    """This and the next: where nobody recorded it, the time when the state was read."""
    finished_at: UnixTime = field(default_factory=time.time)
    """When the rank failed: the earliest is the culprit; or when the whole try had ended."""
    elapsed_s: NonNegativeFloat | None = None
    """From start to end by a clock that nobody sets; None where nobody saw both."""

    @property
    def is_recorded(self) -> bool:
        return self.number is not None

    @property
    def is_lost(self) -> bool:
        """Whether the supervisor died, or its host: nobody has recorded how the try ended."""
        return self.cause in ("host", "supervisor", "supervisor_lost") and not self.is_recorded


@dataclass(frozen=True)
class CellResult:
    """A finished cell. It is written last, and only when every rank ended well."""

    cell_id: str
    """Hash of the requested configuration that determines the result, repeat included."""
    config_id: str
    """The same without the repeat: cells that share it are repeats of one another."""
    name: str
    repeat: NonNegativeInt
    attempt: PositiveInt
    """How many tries it took, counted from 1."""
    started_at: UnixTime
    finished_at: UnixTime
    elapsed_s: NonNegativeFloat
    """From start to end by a clock that nobody sets."""
    world_size: WorldSize
    strategy: str
    scaling: Literal["strong", "weak"]
    global_batch_size: PositiveInt | None
    """Samples of a step; None where nobody could count them, also below."""
    per_device_batch_size: PositiveInt | None
    co_tenants: tuple[str, ...]
    """Cells and foreign processes that shared the host while this one ran."""
    ranks: Annotated[tuple[RankSummary, ...], Field(min_length=1)]
    models: PositiveInt = 1
    """Models that were trained: above 1, ranks that never met, a ceiling and no training job."""

    def __post_init__(self) -> None:
        found = sorted(one.rank for one in self.ranks)
        if found != list(range(self.world_size)):
            told = ", ".join(map(str, found[:8]))
            raise ValueError(f"ranks: found {told}; allowed: each of {self.world_size} once")

    @property
    def rehearsed(self) -> RehearsalRecord | None:
        """What was emulated of its ranks; None where all were there. Else its rate is of one."""
        return self.ranks[0].rehearsed


@dataclass(frozen=True)
class TrackerState:
    """The rows that one tracker was given, and the rows it counts."""

    status: Literal["synced", "incomplete", "failed"]
    handed_over: int
    """Rows logged to it."""
    read_back: int | None
    """Rows that it counts itself at the end; None where it does not, or could not be asked."""
    location: str
    """Project and run, folder or URL: where a person finds it."""
    problem: str | None = None


@dataclass(frozen=True)
class TrackingRecord:
    """How the mirrors of a cell stand."""

    trackers: Mapping[str, TrackerState]
    """``trackio`` and ``wandb``."""
    attempt: int
    """The try that was mirrored, counted from 1."""
    alerts: tuple[str, ...]
    """Titles of the alerts that were handed over, each said once."""


@dataclass(frozen=True)
class CandidateEvidence:
    """The outcome of the short runs of one strategy."""

    name: str
    devices: int | None
    """Devices it ran on; None where no run ended well."""
    runs: int
    """Those that gave a figure."""
    global_samples_per_s: float | None
    """Mean over runs."""
    low: float | None = None
    """Lower end of its 95 % t interval; None with fewer than two runs."""
    high: float | None = None
    problem: str = ""

    def __str__(self) -> str:
        if self.global_samples_per_s is None:
            return f"{self.name} has no figure ({self.problem})"
        interval = ""
        if self.low is not None and self.high is not None:
            interval = f" ({_rate(self.low)}-{_rate(self.high)})"
        runs = f"{self.runs} run{'s' if self.runs != 1 else ''}"
        rate = f"{self.global_samples_per_s:,.0f}{interval} samples/s"
        return f"{self.name} x{self.devices} {rate} ({runs})"


@dataclass(frozen=True)
class ThresholdRule:
    """The choice of the published PCIe study's rule, from parameters and batch alone."""

    says: Literal["single", "ddp", "undecided"]
    reason: str


@dataclass(frozen=True)
class StrategyDecision:
    """The strategy chosen, and what it was chosen by; absent where it was asked for by name."""

    FILE: ClassVar[str] = "decision.json"
    chosen: str
    reason: str
    speedup: float | None
    """Samples/s of the fastest candidate over those of the one with fewest devices; where they are
    the same, of the other over those. None with one candidate measured."""
    speedup_low: float | None
    """Lower end of its interval: at 95 %, for all candidates together where there are several."""
    speedup_high: float | None
    probe_steps: int
    """Steps of each short run, warm-up included."""
    candidates: tuple[CandidateEvidence, ...]
    rule: ThresholdRule | None
    """None where the parameters are not known."""

    def lines(self) -> tuple[str, str, str]:
        """The measurement, the choice and the rule of thumb, a line each."""
        measured = f"measured in {self.probe_steps} steps each: "
        measured += ", ".join(map(str, self.candidates))
        return measured, f"chosen: {self.chosen}; {self.reason}", self._baseline()

    def _baseline(self) -> str:
        if self.rule is None:
            return "published rule of thumb: not asked, the parameters are not known"
        # It chooses one device or several, no strategy.
        agrees = (self.rule.says == "single") == (self.chosen == "single")
        verdict = "agrees" if agrees else "disagrees with the measurement"
        if self.rule.says == "undecided":
            verdict = "leaves it open"
        return f"published rule of thumb: {self.rule.says} ({self.rule.reason}); {verdict}"


def _rate(samples_per_s: float) -> str:
    """Whole samples/s, two digits below 10: intervals of two runs end near zero, never at it."""
    return f"{samples_per_s:,.0f}" if samples_per_s >= 10 else f"{samples_per_s:.2g}"


@dataclass(frozen=True)
class ImportedResult:
    """One published line beside the records of a cell. None is "not published"."""

    FILE: ClassVar[str] = "imported.json"
    devices: WorldSize
    global_batch_size: PositiveInt
    step_time_ms: PositiveFloat
    samples_per_s: PositiveFloat
    """As it was published, whatever was counted."""
    communication_ms: float | None = None

    @property
    def counted_batch(self) -> float:
        """The samples a step that the published throughput stands for."""
        return self.samples_per_s * self.step_time_ms / 1e3
