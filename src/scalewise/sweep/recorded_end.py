"""What a supervisor writes down when its cell has ended: the result, or why there is none."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from scalewise.analysis.rank_validity import Invalid, invalid_ranks
from scalewise.config import CellConfig
from scalewise.records import Attempt, CellFolder, CellResult, RankSummary, RecordError
from scalewise.records.checkpoints import drop_checkpoints
from scalewise.records.fed import batch_sizes_of
from scalewise.records.rank_means import last_metrics
from scalewise.sweep.blame import Verdict, last_lines
from scalewise.sweep.job import Job, Outcome
from scalewise.sweep.measured import objective_of, throughput_of
from scalewise.sweep.memory_advice import advised


@dataclass(frozen=True)
class Try:
    """One attempt at one cell."""

    job: Job
    cell: CellConfig
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
        job, cell, world = self.job, self.cell, self.job.world_size
        try:
            summaries = tuple(self.folder.load_rank(rank) for rank in range(world))
        except RecordError as error:
            return self.record_failure(
                Verdict("exit", f"every rank exited with 0, but {error}", None, 0)
            )
        throughput = throughput_of(self.folder, summaries)
        per_device_batch, global_batch = batch_sizes_of(self.folder, summaries) or (
            cell.per_device_batch_size(world),
            cell.global_batch_size(world),
        )
        # The fastest of a search must not be the one that left out the work.
        invalid = next(invalid_ranks(summaries), None)
        worth = None if invalid else throughput
        objective = objective_of(cell.sweep.objective, last_metrics(summaries), worth)
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
                strategy=cell.strategy.name,
                scaling=cell.scaling,
                global_batch_size=global_batch,
                per_device_batch_size=per_device_batch,
                objective=objective,
                co_tenants=co_tenants({summary.pid for summary in summaries}),
                ranks=summaries,
                models=1 if cell.strategy.ONE_MODEL else world,
            )
        )
        if not cell.checkpoint.keep:
            drop_checkpoints(self.folder.path)
        unmeasured = "" if objective is not None else self._unmeasured(summaries[0], invalid)
        return Outcome("done", unmeasured, objective, throughput)

    def _unmeasured(self, summary: RankSummary, invalid: Invalid | None) -> str:
        if invalid and self.cell.sweep.objective == "global_samples_per_s":
            return f"sweep.objective: no global_samples_per_s, as {invalid.reason}"
        measured = [name for name, value in summary.metrics.items() if value is not None]
        return (
            f"sweep.objective: found {self.cell.sweep.objective!r}, which this cell did not "
            f"measure; allowed: {', '.join([*sorted(measured), 'global_samples_per_s'])}"
        )

    def record_failure(self, verdict: Verdict) -> Outcome:
        """Write the attempt: what failed, where, the rank's last lines."""
        verdict = advised(verdict, self.cell, self.job.world_size)
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
