"""What a supervisor writes down when its cell has ended: the result, or why there is none."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path

from scalewise.records import Attempt, CellFolder, CellResult, RecordError
from scalewise.records.fed import batch_sizes_of
from scalewise.sweep.job import Job, Outcome, Verdict


@dataclass(frozen=True)
class Try:
    """One attempt at one cell."""

    job: Job
    folder: CellFolder
    number: int
    started_at: float
    """Unix time."""
    began_s: float
    """The same moment by the monotonic clock, which nobody sets."""

    def record_result(self, co_tenants: Callable[[Collection[int]], tuple[str, ...]]) -> Outcome:
        """Every rank ended well: write ``result.json``, or the attempt if one left no summary.

        ``co_tenants`` tells who shared the host with the ranks, given their process ids.
        """
        job, settings, world = self.job, self.job.settings, self.job.world_size
        try:
            summaries = tuple(self.folder.load_rank(rank) for rank in range(world))
        except RecordError as error:
            return self.record_failure(
                Verdict("exit", f"every rank exited with 0, but {error}", None, 0)
            )
        sizes = batch_sizes_of(summaries) or settings.batch_sizes
        assert sizes is not None, "ranks that cannot share the batch do not end well"
        per_device_batch, global_batch = sizes
        self.folder.save_result(
            CellResult(
                cell_id=job.cell.cell_id,
                config_id=job.cell.config_id,
                name=job.cell.name,
                repeat=job.cell.repeat,
                attempt=self.number,
                started_at=self.started_at,
                finished_at=time.time(),
                elapsed_s=time.monotonic() - self.began_s,
                world_size=world,
                strategy=settings.strategy,
                scaling=settings.scaling,
                global_batch_size=global_batch,
                per_device_batch_size=per_device_batch,
                co_tenants=co_tenants({summary.pid for summary in summaries}),
                ranks=summaries,
                models=1 if settings.one_model else world,
            )
        )
        if not settings.keep_checkpoints and (self.folder.path / "checkpoints").exists():
            from scalewise.records.checkpoints import drop_checkpoints

            drop_checkpoints(self.folder.path)
        return Outcome("done")

    def record_failure(self, verdict: Verdict) -> Outcome:
        """Write the attempt: what failed, where, the rank's last lines."""
        from scalewise.sweep.blame import last_lines

        advice = self.job.settings.memory_advice if verdict.cause == "oom" else ""
        if advice:
            verdict = replace(verdict, message=f"{verdict.message}; {advice}")
        attempt = Attempt(
            number=self.number,
            outcome="interrupted" if verdict.cause == "interrupted" else "failed",
            cause=verdict.cause,
            message=verdict.message,
            rank=verdict.rank,
            exit_code=verdict.exit_code,
            last_lines=last_lines(self.folder, verdict.rank),
            started_at=self.started_at,
            finished_at=time.time(),
            elapsed_s=time.monotonic() - self.began_s,
        )
        self.folder.save_attempt(attempt)
        return Outcome(attempt.outcome, verdict.message, cause=verdict.cause)


def foreign_processes(
    folder: CellFolder, own: Collection[int], sees_host: bool | None = None
) -> tuple[str, ...]:
    """Who else computed on a cell's GPUs while it ran, by its device series.

    ``own`` are the ranks' pids; ``sees_host`` whether the driver's pids mean the same here (None:
    find out). Where they do not, all that can be told is that there were more than one.
    """
    from scalewise.records import read_device_series

    sees_host = _sees_host_pids() if sees_host is None else sees_host
    pids: dict[int, str] = {}
    most: dict[str, int] = {}
    for path in folder.device_series_paths():
        try:
            series = read_device_series(path)
        except RecordError:
            continue  # the report names the file
        for sample in series.samples:
            for uuid, row in sample.items():
                running = [p.pid for p in row.processes or ()]
                most[uuid] = max(most.get(uuid, 0), len(running))
                pids.update(dict.fromkeys(set(running) - set(own), uuid))
    if sees_host:
        return tuple(f"process {pid} on {uuid}" for pid, uuid in sorted(pids.items()))
    return tuple(
        f"{count - 1} other process{'es' if count > 2 else ''} on {uuid}"
        for uuid, count in sorted(most.items())
        if count > 1
    )


_HOST_PID_NAMESPACE = "pid:[4026531836]"
"""The kernel gives the first PID namespace of a host this number (PROC_PID_INIT_INO)."""


def _sees_host_pids() -> bool:
    try:
        return str(Path("/proc/self/ns/pid").readlink()) == _HOST_PID_NAMESPACE
    except OSError:
        return False
