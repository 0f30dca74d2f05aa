"""The one seam to SLURM: options of ``hydra/launcher=slurm``, job scripts, and its commands.

Widths differ within a sweep, so there is one submitit executor, and one job array, for each demand.
submitit is an optional extra and is imported only where jobs are written or sent.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from scalewise.cluster.hosts import ClusterConfig, ClusterDemand
from scalewise.config import ConfigError
from scalewise.gpu import HostMismatch
from scalewise.records import words_beside

if TYPE_CHECKING:
    from submitit import SlurmExecutor, SlurmJob


SCRIPTS = "slurm"
"""Folder inside the sweep's with the job scripts, their pickles and their logs."""
MAX_ARRAY = 1000
"""Tasks of one job array; SLURM's own default limit (MaxArraySize) is 1001."""

_NAMES = words_beside(__file__, dict[str, Any])
GONE = "GONE"
"""Of a job that the controller has forgotten."""
ENDED: Mapping[str, Mapping[str, Any]] = _NAMES["ended"]
"""States after which a job does not run again, and what each tells of its :class:`Ending`."""


@dataclass(frozen=True)
class SlurmConfig(ClusterConfig):
    """The config group ``hydra/launcher``, option ``slurm``."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time_min: PositiveInt = 60
    """Time limit of one cell, in minutes."""
    cpus_per_device: PositiveInt = 4
    mem_gb_per_device: PositiveFloat | None = None
    max_parallel: PositiveInt = 256
    """Jobs of one array that run at once."""
    requeue_on_timeout: NonNegativeInt = 0
    """Times a cell that meets its time limit is started anew; preempted cells always are."""
    signal_delay_s: NonNegativeInt = 60
    """How long before its time limit a cell is asked to stop and to record that it was."""
    poll_s: Annotated[float, Field(ge=0.1)] = 5.0
    """Time between two looks at the queue and at the records."""
    settle_s: NonNegativeFloat = 30.0
    """How long a file may take to appear here once its writer has ended on another host."""
    setup: tuple[str, ...] = ()
    """Lines of shell that a job runs first, e.g. ``module load cuda``."""
    extra: Mapping[str, str | int | bool] = field(default_factory=dict)
    """More options of sbatch; typed as ``+hydra.launcher.extra.constraint=h200``."""

    def __post_init__(self) -> None:
        taken = sorted({*_NAMES["ours"]} & {name.replace("_", "-") for name in self.extra})
        if taken:
            # Several tasks, each starting all ranks of the cell, is the classic way to train with
            # tasks x devices processes: here no task count can be given at all.
            raise ValueError(
                f"extra: found {', '.join(taken)}, which follow from the cell (one task a node "
                "starts all its ranks) or from another key of hydra.launcher; allowed: any other "
                "option of sbatch"
            )


def make_executor(folder: Path, config: SlurmConfig, wanted: ClusterDemand) -> SlurmExecutor:
    """The executor of all cells with one demand. Raises :class:`ConfigError` without submitit."""
    try:
        from submitit import SlurmExecutor
    except ImportError:
        raise ConfigError(
            "hydra/launcher=slurm: submitit is not installed; pip install 'scalewise[slurm]'"
        ) from None

    executor = SlurmExecutor(folder / SCRIPTS / "%j", max_num_timeout=config.requeue_on_timeout)
    executor.update_parameters(**parameters(config, wanted))
    return executor


def parameters(config: SlurmConfig, wanted: ClusterDemand) -> dict[str, Any]:
    """submitit's parameters: always one task a node, which starts that node's ranks."""
    cores = wanted.cpus_per_node
    # A preempted job comes back by itself, unless ``extra`` says otherwise.
    stays_away = "no-requeue" in {name.replace("_", "-") for name in config.extra}
    chosen: dict[str, Any] = {
        "job_name": f"scalewise-x{wanted.world_size}",
        "time": config.time_min,
        "nodes": wanted.nodes,
        "ntasks_per_node": 1,
        "cpus_per_task": cores,
        "gpus_per_node": wanted.gpus_per_node or None,
        "partition": config.partition,
        "account": config.account,
        "qos": config.qos,
        "exclusive": True if config.policy == "exclusive" else None,
        "signal_delay_s": config.signal_delay_s,
        "array_parallelism": config.max_parallel,
        "setup": list(config.setup) or None,
        "stderr_to_stdout": True,
        "additional_parameters": {**({} if stays_away else {"requeue": True}), **config.extra},
        # Since SLURM 22.05 srun no longer takes the cores from sbatch: without its own word, all
        # ranks would share one. And where one task dies, the others must not wait for it.
        "srun_args": ["--kill-on-bad-exit=1", f"--cpus-per-task={cores}"],
    }
    if config.mem_gb_per_device is not None:
        chosen["mem"] = f"{math.ceil(config.mem_gb_per_device * wanted.devices_per_node * 1024)}M"
    return {name: value for name, value in chosen.items() if value is not None}


def submit(executor: SlurmExecutor, jobs: Sequence[Callable[[], None]]) -> list[SlurmJob[None]]:
    """Send jobs of one demand as one array. Raises :class:`HostMismatch` if sbatch refuses them."""
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    try:
        with executor.batch():
            sent = [executor.submit(job) for job in jobs]
    except (FailedJobError, FailedSubmissionError) as error:
        said = [line for line in str(error).splitlines() if line.startswith("sbatch: error")]
        raise HostMismatch(f"SLURM refused the job: {said[-1] if said else error}") from None
    return cast("list[SlurmJob[None]]", sent)


_ANSWER_S = 60.0


class QueueUnreachable(Exception):  # noqa: N818 - it says what is wrong
    """The controller did not answer. Jobs go on without it: ask again later."""


def require_slurm() -> None:
    """Raises :class:`ConfigError` where SLURM's commands are not installed."""
    missing = [name for name in ("sbatch", "squeue", "scancel") if shutil.which(name) is None]
    if missing:
        raise ConfigError(
            f"hydra/launcher=slurm: {', '.join(missing)} not found; allowed: on a host of the "
            "cluster"
        )


@dataclass(frozen=True)
class JobState:
    state: str
    """SLURM's long name, e.g. ``RUNNING`` or ``OUT_OF_MEMORY``."""
    reason: str = ""
    """Why it waits, e.g. ``Resources``."""

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def hopeless(self) -> bool:
        """Whether it waits for what this cluster, as it is set up, does not have."""
        return self.state == "PENDING" and self.reason in _NAMES["hopeless"]


def states(job_ids: Collection[str]) -> dict[str, JobState]:
    """The state of each job, by id (``12`` or ``12_3``). Raises :class:`QueueUnreachable`.

    Accounting is not asked: it is often switched off.
    """
    answer = _run(
        "squeue", "--noheader", "--array", "--states=all",
        f"--user={os.getuid()}", "--format=%i|%T|%r",
    )  # fmt: skip
    told = (line.strip().split("|", 2) for line in answer.splitlines())
    known = {job: JobState(state, reason) for job, state, reason in told}
    return {job: known.get(job, JobState(GONE)) for job in job_ids}


def cancel(job_ids: Iterable[str]) -> None:
    """Ask SLURM to end jobs. Raises :class:`QueueUnreachable`; an ended job is no error."""
    wanted = list(job_ids)
    if wanted:
        _run("scancel", "--quiet", *wanted)


def preempted(job_id: str) -> bool:
    """Whether SLURM has taken a job off its nodes for the sake of another, or is about to.

    The time of it is forgotten when the job runs again. Raises :class:`QueueUnreachable`.
    """
    told = _run("squeue", "--noheader", f"--jobs={job_id}", "--Format=PreemptTime")
    return told.strip() not in ("", "N/A")


def requeue(job_id: str) -> None:
    """Ask SLURM to run a job again. Raises :class:`QueueUnreachable`, also where it refuses."""
    _run("scontrol", "requeue", job_id)


def neighbours(node: str, own_id: str) -> tuple[str, ...]:
    """Other running jobs on a node, as SLURM shows them to this user."""
    found = _run("squeue", "--noheader", "--states=RUNNING", f"--nodelist={node}", "--format=%A")
    return tuple(sorted({f"SLURM job {job}" for job in found.split()} - {f"SLURM job {own_id}"}))


def _run(*words: str) -> str:
    try:
        done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=_ANSWER_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise QueueUnreachable(f"{words[0]}: {error}") from error
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        raise QueueUnreachable(f"{words[0]}: {said[-1] if said else done.returncode}")
    return done.stdout
