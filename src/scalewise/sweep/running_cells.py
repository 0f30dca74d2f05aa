"""The supervisor process of a cell: its start, its job, and the record of its ending."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import Any

import psutil

from scalewise.config import CellConfig, ConfigError, rehearsed
from scalewise.records import CellFolder, Ending, closest, last_metrics
from scalewise.script import python_path
from scalewise.supervisor import Job, Settings, from_line, log_end, supervisor_command, to_line
from scalewise.sweep.fork_server import ForkedSupervisor

_EXIT_S = 30.0


class SupervisorProcess:
    """A supervisor that ends its cell when this process stops or dies: its input closes then.

    ``job`` is sent to ``process``.
    """

    def __init__(self, job: Job, process: subprocess.Popen[bytes] | ForkedSupervisor) -> None:
        self.job = job
        self.process = process
        assert process.stdin is not None
        # It may die at birth: its empty answer is handled like any other death.
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(to_line(job))
            process.stdin.flush()

    def stop(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def ending(self) -> Ending:
        """Wait for its answer. Where it died without one, nothing ``is_recorded``."""
        assert self.process.stdout is not None
        answer = self.process.stdout.readline()
        status = None
        # Within a driver call that hangs it cannot exit.
        with contextlib.suppress(subprocess.TimeoutExpired, psutil.TimeoutExpired):
            status = self.process.wait(_EXIT_S)
        self.process.stdout.close()
        self.stop()
        if answer.endswith(b"\n"):
            return from_line(Ending, answer)
        lines = log_end(self.job.errors)
        if status is not None and status < 0:
            message = f"the supervisor was ended by {signal.Signals(-status).name}"
            return Ending("failed", "supervisor_lost", message, last_lines=lines)
        how = "did not exit" if status is None else f"exited with {status}"
        message = f"the supervisor {how}; see {self.job.errors.name}"
        return Ending("failed", "supervisor", message, last_lines=lines)


def start_supervisor(job: Job, locks: tuple[int, ...], **options: Any) -> SupervisorProcess:
    """Start the supervisor of a job; it and its ranks inherit the ``locks``."""
    job.errors.unlink(missing_ok=True)  # it may be a link to another file
    with job.errors.open("xb") as file:
        process = subprocess.Popen(
            supervisor_command(locks),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            pass_fds=locks,
            **options,
        )
    return SupervisorProcess(job, process)


def measure_objective(
    folder: CellFolder, cell_id: str, objective: str, was_reported: bool
) -> tuple[Ending, float | None, float | None]:
    """The ending of a done cell, which says why there is no objective; the objective; samples/s.

    ``was_reported``: an earlier run of the sweep has already shown why a figure is missing.
    """
    from scalewise.analysis import invalid_ranks, read_cell_steps

    result = folder.find_result(cell_id)
    if result is None:
        return Ending("done", message="its result cannot be read"), None, None
    if result.rehearsed is not None:  # nothing that it learned or reached is of all its ranks
        return Ending("done"), None, None
    wants_rate = objective == "global_samples_per_s"
    rate = None
    if wants_rate or not was_reported:
        measured = read_cell_steps(folder, result).figures.throughput
        rate = None if measured is None else measured.global_samples_per_s
    if not wants_rate:
        value = last_metrics(result.ranks).get(objective)
        known = sorted(name for name, one in result.ranks[0].metrics.items() if one is not None)
        missing = (
            f"sweep.objective: found {objective!r}{closest(objective, known)}, which this cell did "
            f"not measure; allowed: {', '.join([*known, 'global_samples_per_s'])}"
        )
    else:
        # The fastest of a search must not be the one that left out the work.
        invalid = next(invalid_ranks(result.ranks), None)
        value = None if invalid else rate
        why = f"as {invalid.text}" if invalid else "the steps carry none"
        missing = f"sweep.objective: no global_samples_per_s, {why}"
    return Ending("done", message="" if was_reported or value is not None else missing), value, rate


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
    if cell.script is not None:
        # As it was typed: sys.path of this process is none of the script's.
        environment["PYTHONPATH"] = python_path(os.environ.get("PYTHONPATH"))
        environment.setdefault("WANDB_MODE", os.environ.get("WANDB_MODE", "offline"))
    sweep, rehearsal = cell.sweep, rehearsed(cell)
    return Settings(
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
        sample_every_s=cell.sample_every_s,
        seed_format=cell.monitor.seed_format,
        memory_advice=advice,
        script=() if cell.script is None else tuple(cell.script.words),
        rehearsed_ranks=None if rehearsal is None else rehearsal.ranks,
    )


def memory_advice(cell: CellConfig, world_size: int) -> str:
    """Settings that need less memory, in words, those that cost least first; empty for none."""
    if cell.script is not None:
        return "what needs less memory: a smaller batch, by the script's own arguments"
    smaller = _smaller_batch(cell, world_size)
    remedies = [smaller] if smaller else []
    if cell.precision.name in ("fp32", "tf32"):
        remedies.append("precision=bf16-mixed")
    if not cell.execution.activation_checkpointing:
        remedies.append("execution.activation_checkpointing=true (for a model of repeated blocks)")
    if cell.strategy.kind in ("single", "ddp", "rehearsal"):  # every device holds the whole model
        remedies.append("strategy=fsdp (divides parameters and optimizer over the devices)")
    return "what needs less memory: " + ", ".join(remedies) if remedies else ""


def _smaller_batch(cell: CellConfig, world_size: int) -> str:
    """A way to feed fewer samples at once; empty where a device has a single one already."""
    each = cell.per_device_batch_size(world_size)
    if each == 1:
        return ""
    if each % 2 == 0 and cell.batch_size % 2 == 0:
        batches = 2 * cell.accumulate_grad_batches
        half = f"batch_size={cell.batch_size // 2} accumulate_grad_batches={batches}"
        return f"{half} (as many samples a step, {each // 2} at once on a device)"
    return f"a smaller batch_size ({cell.batch_size} now, {each} a device)"
