"""A cell that runs on this host: how it starts, what its supervisor is told, how it ends."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from scalewise.config import CellConfig, ConfigError
from scalewise.gpu import DeviceSampler, Host, Lease
from scalewise.host import end_orphans, find_below, worker_command
from scalewise.records import (
    Attempt,
    Cause,
    CellFolder,
    DeviceInfo,
    RankSummary,
    RecordError,
    data_shards_of,
    last_metrics,
    read_steps,
)
from scalewise.supervisor import Job, Origin, Outcome, Settings, supervisor_command
from scalewise.sweep.fork_server import ForkedSupervisor, WarmServer
from scalewise.sweep.plan import Cell


@dataclass
class RunningCell:
    """One try at a cell, from the start of its supervisor to its answer."""

    cell: Cell
    folder: CellFolder
    lease: Lease
    process: subprocess.Popen[bytes] | ForkedSupervisor
    sampler: DeviceSampler | None = None
    started: float = field(default_factory=time.monotonic)

    @property
    def name(self) -> str:
        return self.cell.planned.name

    @property
    def width(self) -> int:
        return len(self.lease.slots)

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.started

    def tell(self, neighbour: str) -> None:
        """Let the cell know who shares the host with it from now on."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is ending: nobody disturbs it any more
            self.process.stdin.write(f"{neighbour}\n".encode())
            self.process.stdin.flush()

    def take_answer(self) -> Outcome | None:
        """How it ended, once its supervisor has; None if that died without an answer.

        Processes that are left of the cell are killed.
        """
        assert self.process.stdout is not None and self.process.stdin is not None
        answer = self.process.stdout.read()
        self.process.wait()
        self.process.stdout.close()
        with contextlib.suppress(BrokenPipeError):  # a job line that was never read
            self.process.stdin.close()
        self._clean_up()
        return Outcome.from_line(answer) if answer.endswith(b"\n") else None

    def how_it_died(self) -> tuple[str, list[str]]:
        """One line on a supervisor without an answer, and the last lines it wrote."""
        code = self.process.wait()
        how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        message = f"the supervisor was {how}" if code < 0 else f"the supervisor {how}"
        if code >= 0:
            message += "; see supervisor.err"
        errors = (self.folder.path / "supervisor.err").read_text(errors="replace")
        return message, errors.splitlines()[-20:]

    def end(self, deadline: float) -> None:
        """Wait until ``deadline`` for a supervisor that was told to stop, then kill."""
        try:
            self.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._clean_up()

    def _clean_up(self) -> None:
        # Its session is its own: whoever is still in it is an orphan of this cell.
        end_orphans(self.process.pid)
        if self.sampler is not None:
            self.sampler.stop()


def start(
    cell: Cell,
    folder: CellFolder,
    lease: Lease,
    host: Host,
    neighbours: tuple[str, ...],
    locks: tuple[int, ...],
    warm: WarmServer | None = None,
) -> RunningCell:
    """Start a cell's supervisor, which starts its ranks.

    With ``warm`` both are forks of it. Raises NotWarmError where that cannot fork. ``locks`` are
    descriptors that supervisor and ranks inherit, beside those of the lease.
    """
    locks = (*lease.descriptors, *locks)
    origin = Origin.of_this_process()
    job = Job(
        folder=str(folder.path.resolve()),
        cell=cell.planned,
        # The sweep's own process samples the devices of its host.
        settings=replace(settings_of(cell.request.cell, len(lease.slots)), sample_every_s=None),
        slots=lease.slots,
        cwd=origin.cwd,
        python_path=origin.python_path,
        command=origin.command,
        driver=host.driver,
        topology=host.topology,
        co_tenants=neighbours,
    )
    errors = folder.path / "supervisor.err"
    process = _spawned(errors, locks) if warm is None else warm.supervisor(errors, locks)
    assert process.stdin is not None
    # It may die at birth: its empty answer is handled like any other death.
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(job.to_line())
        process.stdin.flush()
    return RunningCell(cell, folder, lease, process)


def _spawned(errors: Path, locks: tuple[int, ...]) -> subprocess.Popen[bytes]:
    with errors.open("wb") as file:
        return subprocess.Popen(
            supervisor_command(locks),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            start_new_session=True,
            pass_fds=locks,
        )


def start_sampler(
    config: CellConfig, folder: CellFolder, slots: Sequence[DeviceInfo]
) -> DeviceSampler | None:
    """Sample the devices of a cell in this process; None where the cell wants no samples.

    Call it before the cell's supervisor starts, to tell its ranks from an earlier try's. When
    this process dies, its supervisors end their cells: nobody has to take over.
    """
    if not config.monitor.devices:
        return None
    sampler = DeviceSampler(
        folder,
        {slot.uuid: rank for rank, slot in enumerate(slots) if slot.uuid},
        _trainers_of(folder, is_wrapped=config.sweep.wrap is not None),
        config.monitor.interval_s,
    )
    sampler.start()
    return sampler


def _trainers_of(folder: CellFolder, *, is_wrapped: bool) -> Callable[[], Mapping[int, int] | None]:
    """Ranks to the processes that train, as the supervisor of the try to come names them."""
    before = folder.load_running()
    started: tuple[int, ...] = ()
    own = worker_command(str(folder.path.resolve()))

    def trainers() -> dict[int, int] | None:
        nonlocal started
        if not started:
            running = folder.load_running()
            if running is None or running == before or not running.pids:
                return None
            started = running.pids
        if not is_wrapped:
            return dict(enumerate(started))
        found = ((rank, find_below(pid, own)) for rank, pid in enumerate(started))
        return {rank: pid for rank, pid in found if pid is not None}

    return trainers


def attempt_until_now(
    folder: CellFolder,
    outcome: Literal["failed", "skipped", "interrupted"],
    cause: Cause,
    message: str,
    lines: Sequence[str] = (),
    began_at: float | None = None,
) -> Attempt:
    """The cell's next attempt, of no rank in particular, which has just ended.

    ``began_at`` is Unix time; None for a try that ended before it began.
    """
    now = time.time()
    begin = now if began_at is None else began_at
    number = folder.next_attempt_number()
    return Attempt(number, outcome, cause, message, None, None, tuple(lines), begin, now)


def throughput_of(folder: CellFolder, ranks: Sequence[RankSummary]) -> float | None:
    """Global samples/s of a run; None where its records do not carry it."""
    from scalewise.analysis import NotMeasuredError, measure_throughput

    try:
        series = [read_steps(folder.steps_path(rank), rank) for rank in range(len(ranks))]
        measured = measure_throughput(series, len(ranks), data_shards_of(ranks))
    except (RecordError, NotMeasuredError):
        return None
    return measured.global_samples_per_s


def done(folder: CellFolder, cell_id: str, objective: str, told_before: bool) -> Outcome:
    """The outcome of a cell that is done: what its records say it is worth.

    Args:
        objective: the name of what its sweeper asked for.
        told_before: by an earlier run of the sweep, which said already what could not be measured.
    """
    result = folder.result_of(cell_id)
    if result is None:
        return Outcome("done", "its result cannot be read")
    wants_rate = objective == "global_samples_per_s"
    rate = None if told_before and not wants_rate else throughput_of(folder, result.ranks)
    if not wants_rate:
        value = last_metrics(result.ranks).get(objective)
        missing = _unmeasured(objective, result.ranks)
    else:
        from scalewise.analysis import invalid_ranks

        # The fastest of a search must not be the one that left out the work.
        invalid = next(invalid_ranks(result.ranks), None)
        value = None if invalid else rate
        why = f"as {invalid.reason}" if invalid else "the steps carry none"
        missing = f"sweep.objective: no global_samples_per_s, {why}"
    return Outcome("done", "" if told_before or value is not None else missing, value, rate)


def _unmeasured(objective: str, ranks: Sequence[RankSummary]) -> str:
    measured = [name for name, value in ranks[0].metrics.items() if value is not None]
    allowed = ", ".join([*sorted(measured), "global_samples_per_s"])
    return (
        f"sweep.objective: found {objective!r}, which this cell did not measure; allowed: {allowed}"
    )


def settings_of(cell: CellConfig, world_size: int) -> Settings:
    """The settings of ``cell`` that its supervisor needs, for ``world_size`` ranks."""
    try:
        sizes = (cell.per_device_batch_size(world_size), cell.global_batch_size(world_size))
        advice = memory_advice(cell, world_size)
    except ConfigError:  # every rank meets it again, and its word is recorded
        sizes, advice = None, ""
    environment = {
        **cell.hardware.nccl_environment(),
        **cell.execution.rank_environment(world_size),
    }
    if cell.deterministic:
        # cuBLAS is deterministic only with a fixed workspace, and reads this when it starts.
        environment["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    sweep = cell.sweep
    return Settings(
        workload=cell.workload,
        strategy=cell.strategy.name,
        scaling=cell.scaling,
        one_model=cell.strategy.ONE_MODEL,
        batch_sizes=sizes,
        environment=environment,
        timeout_s=sweep.timeout_s,
        hang_timeout_s=sweep.hang_timeout_s,
        start_timeout_s=sweep.start_timeout_s,
        collective_timeout_s=sweep.collective_timeout_s,
        grace_s=sweep.grace_s,
        wrap=sweep.wrap,
        sample_every_s=cell.monitor.interval_s if cell.monitor.devices else None,
        checkpoints=cell.checkpoint.on,
        keep_checkpoints=cell.checkpoint.keep,
        allow_mixed=sweep.allow_mixed,
        # Those that may name a file.
        dataset_arguments={k: v for k, v in cell.dataset.arguments.items() if isinstance(v, str)},
        memory_advice=advice,
    )


_WHOLE_MODELS = ("single", "ddp")
"""Strategies under which every device holds the whole model."""
MORE_FOR_THE_JOB = "to ask SLURM for more of the host's: a larger hydra.launcher.mem_gb_per_device"
"""Advice for a job that ran out of its host's memory."""


def memory_advice(cell: CellConfig, world_size: int) -> str:
    """Settings that need less memory, in words, those that cost least first; empty for none."""
    if cell.workload != "train":
        return ""
    remedies = [*_smaller_batches(cell, world_size)]
    if cell.precision.name in ("fp32", "tf32"):
        remedies.append("precision=bf16-mixed")
    if not cell.execution.activation_checkpointing:
        remedies.append("execution.activation_checkpointing=true (for a model of repeated blocks)")
    if cell.strategy.kind in _WHOLE_MODELS:
        remedies.append("strategy=fsdp (divides parameters and optimizer over the devices)")
    return "what needs less memory: " + ", ".join(remedies) if remedies else ""


def _smaller_batches(cell: CellConfig, world_size: int) -> list[str]:
    """Ways to feed fewer samples at once; none where a device has a single one already."""
    each = cell.per_device_batch_size(world_size)
    if each == 1 or cell.batch_size == "auto":
        return []
    remedies = [f"a smaller batch_size ({cell.batch_size} now, {each} a device)"]
    if each % 2 == 0 and cell.batch_size % 2 == 0:
        batches = 2 * cell.accumulate_grad_batches
        half = f"batch_size={cell.batch_size // 2} accumulate_grad_batches={batches}"
        remedies = [f"{half} (as many samples a step, {each // 2} at once on a device)"]
    if cell.strategy.kind in _WHOLE_MODELS:
        remedies.append("batch_size=auto (searches the largest that fits)")
    return remedies
