"""Sweep folders as training leaves them, written through the records, with known numbers."""

import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fakes.step_files import append_step, write_rows
from scalewise.analysis import Analysis, Run, analyse, load_sweep
from scalewise.analysis.model import Sweep
from scalewise.host import CLASS_FILES, SOURCE_SHA256, CoreUse
from scalewise.records import (
    PHASES,
    PROTOCOL,
    STEP_DTYPE,
    WARMUP,
    Alert,
    CellFolder,
    CellResult,
    DeviceInfo,
    DeviceSample,
    DeviceSeriesWriter,
    Ending,
    MetricRow,
    MetricsWriter,
    PlannedCell,
    Provenance,
    RankSummary,
    SampledDevice,
    ShardIndices,
    StepWriter,
    SweepFolder,
    SweepPlan,
    TrackerState,
    TrackingRecord,
    finite_or_none,
    write_shard,
)

PACKAGES = {"torch": "2.13.0", "pytorch-lightning": "2.6.6", "numpy": "2.4.6"}
START = 1_760_000_000.0

SINGLE_MS = {
    "data_wait": 0.1, "h2d": 0.2, "forward": 3.0, "backward": 6.0, "optimizer": 0.5, "other": 0.2,
}  # fmt: skip
DDP_MS = {
    "data_wait": 0.1, "h2d": 0.1, "forward": 1.6, "backward": 3.1, "exposed_comm": 0.6,
    "optimizer": 0.5, "other": 0.2,
}  # fmt: skip

STEADY = [1.0, 1.01, 0.99, 1.005, 0.995]
"""Times of repeats on a quiet host, over their mean."""
STEADY_3 = STEADY[:3]
QUIET = CoreUse(cores=1, window_s=10.0, busy_s=4.1, own_s=4.0)
"""A rank whose core nobody else had."""


@dataclass(frozen=True)
class Spec:
    """One cell: what was asked for and what happened.

    All that :meth:`as_config` writes and ``devices`` are its identity: repeats of one configuration
    agree in it. What differs in ``steps`` alone needs the same ``config={"max_steps": ...}``.
    """

    model: str = "large"
    dataset: str = "tabular"
    strategy: str = "single"
    devices: int = 1
    repeat: int = 0
    scaling: str = "strong"
    batch_size: int = 128
    seed: int = 7
    kind: str = "cuda"
    phases_ms: Mapping[str, float] = field(default_factory=lambda: SINGLE_MS)
    slow_ranks_ms: Mapping[int, float] = field(default_factory=dict)
    """Extra ms in forward; the other ranks wait for it in exposed communication."""
    run_factor: float = 1.0
    """This run's times over the given ones: run-to-run noise."""
    steps: int = 60
    warmup: int = 10
    foreign_cpu: float = 0.01
    """Share of its cores that others had, 0 to 1."""
    outcome: str = "done"
    sharded: bool = True
    commit: str | None = "a1b2c3d4e5f6"
    source_sha256: str | None = None
    host: str = "dmi-0123456789ab"
    protocol: int = PROTOCOL
    started: str = "fresh"
    not_forked: str | None = None
    first_gpu: int = 0
    """Number in the UUID of rank 0's GPU."""
    device_name: str = "NVIDIA H200"
    co_tenants: tuple[str, ...] = ()
    emulated: tuple[str, ...] = ()
    final_loss: float = 0.25
    """Mean over the ranks."""
    rank_losses: Mapping[int, float] = field(default_factory=dict)
    """What the loss of a rank's own samples lies above that; add up to 0."""
    data: Mapping[str, str] = field(default_factory=dict)
    class_files: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    typed: tuple[str, ...] = ()
    """Overrides, beside those of strategy and model."""

    @property
    def per_device(self) -> int:
        return self.batch_size // self.devices if self.scaling == "strong" else self.batch_size

    @property
    def global_batch(self) -> int:
        return self.per_device * self.devices

    def as_config(self) -> dict[str, Any]:
        return {
            "model": {"name": self.model, "hidden": 512}, "dataset": {"name": self.dataset},
            "strategy": {"name": self.strategy}, "hardware": {"name": "auto"},
            "optimizer": {"name": "adam", "lr": 1e-3}, "precision": {"name": "fp32"},
            "execution": {"name": "eager"}, "batch_size": self.batch_size,
            "scaling": self.scaling, "seed": self.seed, "max_steps": self.steps,
            "max_epochs": None, "warmup_steps": self.warmup, "repeats": 5, "deterministic": False,
            "sweep": {"resume": None}, "tracking": {"name": "both"}, **self.config,
        }  # fmt: skip


DDP = Spec(strategy="ddp", devices=2, phases_ms=DDP_MS)
PIPE_MS = {"data_wait": 0.1, "h2d": 0.1, "forward": 2.0, "backward": 4.0, "optimizer": 0.5}
IN_STAGES = {"strategy": {"name": "pipeline", "kind": "pipeline"}}
PIPE = replace(DDP, strategy="pipeline", phases_ms={**PIPE_MS, "other": 2.0}, config=IN_STAGES)


def repeats(spec: Spec, factors: Sequence[float] = STEADY_3) -> list[Spec]:
    """One spec a run, each with its own run-to-run factor."""
    return [replace(spec, repeat=i, run_factor=f) for i, f in enumerate(factors)]


def write_sweep(path: Path, specs: Sequence[Spec]) -> Path:
    """A sweep folder of these cells."""
    folder = SweepFolder(path)
    planned = tuple(_planned(i, spec) for i, spec in enumerate(specs))
    command = ("train.py", "-m", "strategy=single,ddp", "repeats=5")
    folder.save_plan(SweepPlan(START, command, 1234, planned))
    for cell, spec in zip(planned, specs, strict=True):
        write_cell(folder.cell(cell.name), cell, spec)
    return path


def write_cell(folder: CellFolder, planned: PlannedCell, spec: Spec) -> None:
    folder.save_config(spec.as_config())
    if spec.outcome in ("failed", "refused", "skipped", "interrupted"):
        folder.save_attempt(_attempt(spec))
        return
    if spec.outcome == "waiting":
        return
    folder.save_provenance(_provenance(spec))
    for rank in range(spec.devices):
        _write_steps(folder, spec, rank)
        _write_shard(folder, spec, rank)
        folder.save_rank(_summary(spec, rank))
        _write_metrics(folder, spec, rank)
    _write_devices(folder, spec)
    folder.save_tracking(_tracking())
    folder.save_result(_result(planned, spec))


def swept(path: Path, *specs: Spec) -> Sweep:
    """The sweep of these cells, written and read again."""
    return load_sweep(write_sweep(path, specs))


def analysed(path: Path, *specs: Spec) -> Analysis:
    return analyse(swept(path, *specs))


def pipelined(path: Path, spec: Spec, microbatches: int = 4) -> Analysis:
    """A sweep whose runs on two devices were the two stages of a pipeline."""
    write_sweep(path, [*repeats(Spec(), [1.0, 1.01]), *repeats(spec, [1.0, 1.01])])

    def as_stage(rank: dict[str, Any]) -> None:
        place = rank["rank"]
        of = {"schedule": "1f1b", "stages": 2, "stage": place, "microbatches": microbatches}
        rank |= {"data_shard": 0, "missing": {"arrival": "one after another"}, "pipeline": of}
        rank["optimizer_state_bytes"] = (place + 1) * 2**20

    edit_ranks(path, as_stage, "*pipeline*")
    return analyse(load_sweep(path))


def one_run(path: Path, spec: Spec) -> Run:
    (config,) = analysed(path, spec).measured
    return config.runs[0]


def edit_ranks(path: Path, change: Callable[[dict[str, Any]], object], cells: str = "*") -> None:
    """Changes the record of every rank in the results of these cells."""
    for result in path.glob(f"{cells}/result.json"):
        told = json.loads(result.read_text())
        for rank in told["ranks"]:
            change(rank)
        result.write_text(json.dumps(told))


def with_ranks(run: Run, *changes: Mapping[str, Any]) -> Run:
    """The run with these fields of its ranks' summaries, a mapping a rank."""
    ranks = tuple(
        replace(rank, **one) for rank, one in zip(run.cell.result.ranks, changes, strict=True)
    )
    return replace(run, cell=replace(run.cell, result=replace(run.cell.result, ranks=ranks)))


def with_devices(run: Run, **changes: Any) -> Run:
    """The run with these means of every one of its devices."""
    devices = tuple(replace(device, **changes) for device in run.usage.devices)
    return replace(run, usage=replace(run.usage, devices=devices))


def crowd(path: Path, *cells: str, ms: float = 4.0) -> None:
    """Has other processes hold the cores of rank 0 in these cells for ``ms`` a step."""
    for pattern in cells:
        edit_ranks(
            path,
            lambda rank: rank.update(run_queue_ms_per_step=ms) if rank["rank"] == 0 else None,
            pattern,
        )


def step_ms(spec: Spec) -> float:
    """The whole step of any rank: the slowest rank's work, the same for all."""
    delay = max(spec.slow_ranks_ms.values(), default=0.0)
    return (sum(spec.phases_ms.values()) + delay) * spec.run_factor


def _planned(index: int, spec: Spec) -> PlannedCell:
    name = f"{index:03d}-{spec.model}-{spec.strategy}-r{spec.repeat}"
    identity = repr(sorted(spec.as_config().items(), key=str)) + str(spec.devices)
    config_id = hashlib.sha256(identity.encode()).hexdigest()[:12]
    overrides = (f"strategy={spec.strategy}", f"model={spec.model}", *spec.typed)
    cell_id = f"{config_id}-{spec.repeat}"
    return PlannedCell(cell_id, config_id, name, overrides, spec.repeat, spec.devices)


def _device(spec: Spec, rank: int) -> DeviceInfo:
    if spec.kind == "cpu":
        return DeviceInfo("cpu", "Example CPU 8 cores", cores=(rank,))
    return DeviceInfo("cuda", spec.device_name, _uuid(spec, rank), rank, (rank,), 143_771.0)


def _uuid(spec: Spec, rank: int) -> str:
    return f"GPU-{spec.first_gpu + rank:04d}"


def _provenance(spec: Spec) -> Provenance:
    gpu = spec.kind == "cuda"
    return provenance(
        tuple(_device(spec, r) for r in range(spec.devices)), host=spec.host, packages=PACKAGES,
        command=("train.py", *spec.typed), code=_code(spec),
        driver="570.86.15" if gpu else None, cuda="12.8" if gpu else None,
        nccl="2.26.2" if gpu else None, emulated=spec.emulated, data=spec.data,
        protocol=spec.protocol, started=spec.started, not_forked=spec.not_forked,
    )  # fmt: skip


def provenance(devices: Sequence[DeviceInfo], **changes: Any) -> Provenance:
    """What a cell on these devices tells of its software and host."""
    return Provenance(
        **{
            "command": ("train.py",), "host": "0123456789ab", "platform": "Linux",
            "python": "3.11.9", "packages": {"torch": "2.13.0"},
            "code": {"commit": "abc", "dirty": False}, "devices": tuple(devices), "driver": None,
            "cuda": None, "nccl": None, "environment": {}, "usable_cores": 8,
            "memory_limit_mib": None, "shared_memory_mib": None, "emulated": (), "topology": {},
            "peak_tflops": {}, "peak_source": None, "data": {}, "started": "fresh",
            "not_forked": None, "protocol": PROTOCOL, **changes,
        }
    )  # fmt: skip


def rank_summary(
    rank: int, device: DeviceInfo, steps: int, batch: int, **changes: Any
) -> RankSummary:
    """A rank that took ``steps`` steps of ``batch`` samples."""
    gpu = device.kind == "cuda"
    return RankSummary(
        **{
            "rank": rank, "local_rank": rank, "pid": 1000 + rank, "device": device,
            "parameters_total": 2_021_379, "parameters_trainable": 2_021_379,
            "steps_completed": steps, "samples_fed": steps * batch, "epochs_completed": 1,
            "gradient_bytes": 8_085_516, "gradient_buckets": 1, "flops_per_sample": 12e6,
            "peak_allocated_mib": 310.0 if gpu else None,
            "peak_reserved_mib": 512.0 if gpu else None,
            "allocation_retries": 0 if gpu else None, "peak_rss_mib": 640.0, "metrics": {},
            "step_rows": steps, "core_use": QUIET, **changes,
        }
    )  # fmt: skip


def _code(spec: Spec) -> dict[str, Any]:
    files = {CLASS_FILES: dict(spec.class_files)} if spec.class_files else {}
    if spec.commit is not None:
        return {"commit": spec.commit, "dirty": False, "diff_sha256": None, **files}
    return files if spec.source_sha256 is None else {SOURCE_SHA256: spec.source_sha256, **files}


def _write_steps(folder: CellFolder, spec: Spec, rank: int) -> None:
    delay = max(spec.slow_ranks_ms.values(), default=0.0)
    own = spec.slow_ranks_ms.get(rank, 0.0)
    phases = dict(spec.phases_ms)
    phases["forward"] += own
    if "exposed_comm" in phases:
        phases["exposed_comm"] += delay - own
    noise = np.random.default_rng(spec.repeat).normal(1.0, 0.01, spec.steps)
    noise += 1.0 - noise[spec.warmup % spec.steps :].mean()  # exactly 1 over the timed steps
    warms_up = np.arange(spec.steps) < spec.warmup
    # Warm-up steps are ten times slower: counting one of them would be seen at once.
    factors = spec.run_factor * noise * np.where(warms_up, 10.0, 1.0)
    rows = np.zeros(spec.steps, STEP_DTYPE)
    rows["step"], rows["samples"] = np.arange(spec.steps), spec.per_device
    rows["flags"] = np.where(warms_up, WARMUP, 0)
    reached = [phases[name] for name in ("data_wait", "h2d", "forward", "backward")]
    parts = phases | {"step": sum(phases.values())}
    if "exposed_comm" in phases:
        parts["arrival"] = sum(reached)
    for line in ("host", "device"):
        known = parts if line == "host" or spec.kind == "cuda" else {}
        for name in (*PHASES, "step", "arrival"):
            rows[f"{line}_{name}_ms"] = factors * known.get(name, np.nan)
    took_ns = (parts["step"] * factors * 1e6).astype(np.int64)
    # No two processes begin in the same nanosecond.
    rows["start_ns"] = int(START * 1e9) + 1_000 * rank + np.cumsum(took_ns) - took_ns
    write_rows(folder.steps_path(rank), *np.split(rows, spec.steps))


def _write_shard(folder: CellFolder, spec: Spec, rank: int) -> None:
    path, parts = folder.shard_path(rank), spec.devices if spec.sharded else 1
    asked = spec.seed, parts, rank % parts
    if asked in _SHARDS:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_SHARDS[asked])
        return
    size = 2048
    indices = np.random.default_rng(spec.seed).permutation(size)[rank % parts :: parts]
    write_shard(path, ShardIndices(rank, indices, size, epoch_complete=True))
    _SHARDS[asked] = path.read_bytes()


_SHARDS: dict[tuple[int, ...], bytes] = {}
"""Files by seed, number of parts and part: to pack one takes longer than all else of a rank."""


def _values(spec: Spec, rank: int, step: int) -> dict[str, float]:
    loss = spec.final_loss + (1.2 - spec.final_loss) * np.exp(-step / 12.0)
    return {"train_loss": float(loss) + spec.rank_losses.get(rank, 0.0), "learning_rate": 1e-3}


def _write_metrics(folder: CellFolder, spec: Spec, rank: int) -> None:
    writer = MetricsWriter(folder.metrics_path(rank))
    for step in range(5, spec.steps + 1, 5):
        samples, when = step * spec.global_batch, START + step * 0.01
        writer.append(MetricRow(when, step, 0, samples, _values(spec, rank, step), spec.per_device))
    writer.close()


def _write_devices(folder: CellFolder, spec: Spec) -> None:
    gpu = spec.kind == "cuda"
    name = spec.device_name if gpu else "process"
    ids = [_uuid(spec, r) if gpu else f"rank{r}" for r in range(spec.devices)]
    devices = tuple(SampledDevice(one, r, name, r) for r, one in enumerate(ids))
    host, source = "0123456789ab", "nvml" if gpu else "process"
    path = folder.device_series_path(host)
    writer = DeviceSeriesWriter(path, host, source, 0.1, devices)  # type: ignore[arg-type]
    begin = spec.warmup * step_ms(spec) / 100.0  # ten times slower, in s
    for i in range(8):
        when = START + begin + (i + 0.5) * (spec.steps - spec.warmup) * step_ms(spec) / 8e3
        writer.append(when, {d.id: _sample(spec, d.id, d.index, i) for d in devices}, 0.02)
    writer.close()


def _sample(spec: Spec, device_id: str, index: int, i: int) -> DeviceSample:
    memory = 12_000.0 + 40.0 * index + 5.0 * (i % 3)
    if spec.kind == "cpu":
        return DeviceSample(device_id, 95.0 + i % 3, memory / 20)
    reasons = () if i else ("software power cap",)
    return DeviceSample(
        device_id, 88.0 + index, memory, 400.0 + 10 * index, 55.0, 1980.0, throttle_reasons=reasons
    )


def _summary(spec: Spec, rank: int) -> RankSummary:
    reached = _values(spec, rank, spec.steps // 5 * 5)
    alone = {"gradient_bytes": None, "gradient_buckets": None} if spec.devices == 1 else {}
    return rank_summary(
        rank, _device(spec, rank), spec.steps, spec.per_device,
        metrics={name: finite_or_none(value) for name, value in reached.items()},
        metric_rows=spec.steps // 5,
        core_use=replace(QUIET, busy_s=QUIET.own_s + QUIET.window_s * spec.foreign_cpu), **alone,
    )  # fmt: skip


def _tracking() -> TrackingRecord:
    trackers = {
        "trackio": TrackerState("synced", 12, 12, "scalewise/large-ddp"),
        "wandb": TrackerState("incomplete", 12, 9, "wandb/offline-run", "3 rows lost"),
    }
    return TrackingRecord(trackers, 1, ())


def _result(planned: PlannedCell, spec: Spec) -> CellResult:
    return CellResult(
        cell_id=planned.cell_id, config_id=planned.config_id, name=planned.name,
        repeat=spec.repeat, attempt=1, started_at=START, finished_at=START + spec.repeat + 10,
        elapsed_s=spec.repeat + 10, world_size=spec.devices, strategy=spec.strategy,
        scaling="weak" if spec.scaling == "weak" else "strong",
        global_batch_size=spec.global_batch, per_device_batch_size=spec.per_device,
        co_tenants=spec.co_tenants, ranks=tuple(_summary(spec, r) for r in range(spec.devices)),
    )  # fmt: skip


def _attempt(spec: Spec) -> Ending:
    oom = "CUDA out of memory"
    ending = {
        "failed": Ending("failed", "oom", f"rank 1 ran out of memory: {oom}, tried to allocate "
                         "2.00 GiB", 1, 1, None, (f"torch.OutOfMemoryError: {oom}.",)),
        "refused": Ending("failed", "config", "batch_size: found 8; allowed: at most 6"),
        "skipped": Ending("skipped", "host", "strategy=ddp asks for 2 GPUs; this host has 1"),
        "interrupted": Ending("interrupted", "interrupted", "interrupted by the user"),
    }[spec.outcome]  # fmt: skip
    return replace(ending, number=1, started_at=START, finished_at=START + 3)


# A cell that is written bit by bit, as its ranks would.
BATCH = 16
STEP_MS = 100.0
WARMUP_STEPS = 5
ARRIVAL_MS = (40.0, 60.0, 50.0, 50.0)


def plan_sweep(folder: Path, names: Sequence[str]) -> SweepFolder:
    """Write ``sweep.json`` with one cell a name."""
    sweep = SweepFolder(folder)
    cells = tuple(PlannedCell(f"id-{n}", f"cfg-{n}", n, ("model=medium",), 0, 2) for n in names)
    sweep.save_plan(SweepPlan(time.time(), ("train.py", "-m"), 0, cells))
    return sweep


def own_loss(step: int, rank: int) -> float:
    """What rank ``rank`` records after ``step`` steps: its samples are not the others'."""
    return math.exp(-step / 50) * (1 + rank)


class RecordedCell:
    """A cell of ``ranks`` ranks that has made ``steps`` and can be written bit by bit.

    Every step takes ``STEP_MS`` of recorded (not of real) time. Rank r is ready with its last
    gradient after ``ARRIVAL_MS[r]``.
    """

    def __init__(
        self, folder: CellFolder, *, ranks: int = 2, gpus: bool = True,
        config: Mapping[str, Any] | None = None, steps: int = 0,
    ) -> None:  # fmt: skip
        self.folder = folder
        self.ranks = ranks
        self.started_at = time.time()
        self.steps = 0
        folder.clear_attempt()
        folder.save_config(
            {
                "model": {"name": "medium", "_target_": "scalewise.models.mlp.MLP"},
                "dataset": {"name": "tabular"}, "strategy": {"name": "ddp"},
                "precision": {"name": "fp32"}, "scaling": "strong", "log_every_n_steps": 10,
                "tracking": {"name": "both", "trackers": ["trackio", "wandb"]}, **(config or {}),
            }
        )  # fmt: skip
        kind = "NVIDIA A10G" if gpus else "a processor"
        self.devices = [
            DeviceInfo("cuda", kind, f"GPU-{r}", r) if gpus else DeviceInfo("cpu", kind)
            for r in range(ranks)
        ]
        folder.save_provenance(provenance(self.devices))
        self._metrics = [MetricsWriter(folder.metrics_path(r)) for r in range(ranks)]
        self._steps = [StepWriter(folder.steps_path(r)) for r in range(ranks)]
        self._sampled = tuple(
            SampledDevice(d.uuid or f"rank{r}", r, d.name, r) for r, d in enumerate(self.devices)
        )
        self._series = DeviceSeriesWriter(
            folder.device_series_path("0123456789ab"), "0123456789ab",
            "nvml" if gpus else "process", 1.0, self._sampled,
        )  # fmt: skip
        if steps:
            self.train(steps)

    def train(self, steps: int) -> None:
        """Write ``steps`` more steps, a metrics row every 10 and a device sample every second."""
        start_ns = time.perf_counter_ns() - int((time.time() - self.started_at) * 1e9)
        for step in range(self.steps + 1, self.steps + steps + 1):
            now = self.started_at + step * STEP_MS / 1000
            for rank, writer in enumerate(self._steps):
                arrival = ARRIVAL_MS[rank]
                times = {
                    "data_wait": 2.0, "forward": 10.0, "backward": arrival - 12.0,
                    "exposed_comm": STEP_MS - arrival - 5.0, "optimizer": 5.0, "step": STEP_MS,
                    "arrival": arrival,
                }  # fmt: skip
                flags = 1 if step <= WARMUP_STEPS else 0
                begin = start_ns + int((step - 1) * STEP_MS * 1e6)
                append_step(writer, step - 1, begin, 0, BATCH, flags, times)
            if step % 10 == 0:
                for rank, metrics in enumerate(self._metrics):
                    values = {"train_loss": own_loss(step, rank), "learning_rate": 1e-3}
                    samples = step * BATCH * self.ranks
                    metrics.append(MetricRow(now, step, 0, samples, values, BATCH))
                self._sample(now, step)
        self.steps += steps
        for writer in self._steps:
            writer.flush()

    def _sample(self, now: float, step: int) -> None:
        gpus = self.devices[0].kind == "cuda"
        samples = {
            one.id: DeviceSample(
                one.id, 90.0 + one.index, 12000.0 + 50 * one.index,
                *((150.0 + step % 7, 60.0 + one.index) if gpus else ()),
                throttle_reasons=() if gpus else None,
            )
            for one in self._sampled
        }  # fmt: skip
        self._series.append(now, samples, 0.1)

    def alert(self, alert: Alert) -> None:
        self._series.tell("alert", alert)

    def expected_rows(self) -> int:
        """Rows a tracker must hold once the cell has ended with a result.

        A metrics row of each rank, one of what they come to together, and a device sample every 10
        steps; windows of 10 steps (a second of recorded time), the first shortened by warm-up, and
        one for what is left, which end at steps 10, 20 and so on; the summary.
        """
        assert self.steps >= 20
        windows = math.ceil((self.steps - 1) / 10)
        return self.steps // 10 * ((self.ranks + 1 if self.ranks > 1 else 1) + 1) + windows + 1

    def close(self) -> None:
        for file in (*self._metrics, *self._steps, self._series):
            file.close()

    def succeed(self, attempt: int = 1, ids: Sequence[str] = ("id-{}", "cfg-{}")) -> None:
        """End with a result; ``ids`` are those of cell and configuration, given its name."""
        self.close()
        name, took_s = self.folder.name, self.steps * STEP_MS / 1000
        self.folder.save_result(
            CellResult(
                *(one.format(name) for one in ids), name, 0, attempt, self.started_at,
                self.started_at + took_s, took_s, self.ranks, "ddp", "strong", BATCH * self.ranks,
                BATCH, (), tuple(self._rank_summary(rank) for rank in range(self.ranks)),
            )
        )  # fmt: skip

    def fail(self, number: int = 1) -> None:
        """End as a try that failed."""
        self.close()
        self.folder.save_attempt(
            Ending("failed", "oom", "rank 1 ran out of memory", 1, 1, None,
                   ("CUDA out of memory",), number, self.started_at)
        )  # fmt: skip

    def _rank_summary(self, rank: int) -> RankSummary:
        return rank_summary(
            rank, self.devices[rank], self.steps, BATCH, parameters_total=54403,
            parameters_trainable=54403, peak_allocated_mib=100.0 + rank, peak_rss_mib=500.0,
            metrics={"val_accuracy": 0.9, "train_loss": None}, metric_rows=self.steps // 10,
        )  # fmt: skip


def finish(sweep: SweepFolder, planned: PlannedCell, steps: int = 20) -> CellFolder:
    """Write a cell of a plan that is done."""
    recorded = RecordedCell(sweep.cell(planned.name), steps=steps)
    recorded.succeed(ids=(planned.cell_id, planned.config_id))
    return recorded.folder
