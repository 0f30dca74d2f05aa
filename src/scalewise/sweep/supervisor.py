"""One process a cell: starts its ranks, watches them, ends what is left, writes how it ended.

    python -m scalewise.sweep.supervisor < job

The job is one line on standard input, which then stays open: when it closes, the sweep is gone
and so is this cell. The answer is one line on standard output. It imports neither torch nor
Hydra, so that it costs nothing beside what it watches.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal

from scalewise.config import CellConfig, build_cell
from scalewise.gpu.sampler import DeviceSampler
from scalewise.records import (
    Attempt,
    CellFolder,
    CellResult,
    RankSummary,
    RecordError,
    RunningAttempt,
)
from scalewise.records.checkpoints import drop_checkpoints
from scalewise.records.fed import batch_sizes_of
from scalewise.records.rank_means import last_metrics
from scalewise.sweep.absence import name_absent
from scalewise.sweep.blame import Verdict, blame, last_lines, port_was_taken
from scalewise.sweep.going_on import prepare
from scalewise.sweep.job import Job, Outcome
from scalewise.sweep.liveness import Liveness
from scalewise.sweep.measured import objective_of, throughput_of
from scalewise.sweep.memory_advice import advised
from scalewise.sweep.memory_kills import MemoryKills
from scalewise.sweep.nodes import conclude
from scalewise.sweep.occupancy import foreign_processes
from scalewise.sweep.process_tree import become_subreaper, descendants, end_descendants
from scalewise.sweep.rank_start import Starter, spawn
from scalewise.sweep.ranks import Ranks
from scalewise.sweep.tenants import Tenant
from scalewise.sweep.wakeup import Wakeup

_POLL_S = 1.0
_PORT_TRIES = 3
_STOPPED = Verdict("interrupted", "the sweep was stopped", None, None)


def main(starter: Starter = spawn) -> int:
    """Supervise the job on standard input; exit status 0 if the cell is done."""
    become_subreaper()
    wakeup = Wakeup()
    # Read from the descriptor: a buffered reader would swallow the end that says "gone".
    line, told = read_line()
    job = Job.from_line(line)
    wakeup.tell(told)
    outcome = Supervisor(job, wakeup, starter).run()
    sys.stdout.buffer.write(outcome.to_line())
    sys.stdout.buffer.flush()
    return 0 if outcome.state == "done" else 1


def read_line() -> tuple[bytes, bytes]:
    """The first line of standard input, and what has already come after it."""
    read = b""
    while b"\n" not in read:
        part = os.read(0, 65536)
        if not part:
            raise SystemExit("supervisor: standard input closed before the job was read")
        read += part
    line, _, rest = read.partition(b"\n")
    return line + b"\n", rest


class Supervisor:
    """One attempt at one cell."""

    def __init__(self, job: Job, wakeup: Wakeup, starter: Starter = spawn) -> None:
        self.job = job
        self.starter = starter
        self.folder = CellFolder(Path(job.folder))
        self.cell: CellConfig = build_cell(self.folder.load_config())
        self.wakeup = wakeup
        self.number = self.folder.next_attempt_number()
        self.started_at = time.time()
        self.liveness = Liveness(self.folder, self.cell.sweep)
        self.memory = MemoryKills()
        self.tenant = Tenant(str(self.folder.path.parent), job.cell.name)
        self.workers: set[int] = set()
        """Processes of the doctor's ranks, which are no strangers on its GPUs."""

    def run(self) -> Outcome:
        """Train the cell and record the result, or why there is none."""
        try:
            if self.is_first:
                now = RunningAttempt(self.number, self.started_at, self.job.slots)
                self.folder.save_running(now)
            if self.is_first:
                self._prepare_checkpoint()
            verdict = self._train()
            if self.is_first and self._superseded:
                message = f"{self.job.cell.name}: a later try has begun; this one records nothing"
                return Outcome("interrupted", message)
            if self.job.nodes is not None:
                verdict = conclude(self.folder, self.job.nodes, verdict)
                if not self.is_first:
                    return Outcome("failed", verdict.message) if verdict else Outcome("done")
            if verdict is None:
                return self._record_result()
            return self._record_attempt(verdict)
        except OSError as error:
            # A full disk takes neither result nor attempt; the sweep still hears of it.
            end_descendants(0.0)
            gone = "the cell's folder is gone: deleted or moved while it ran"
            message = str(error) if self.folder.path.exists() else gone
            return Outcome("failed", message, is_recorded=False)
        finally:
            self.tenant.leave()
            if self.is_first and not self._superseded:
                self.folder.clear_running()

    @cached_property
    def _superseded(self) -> bool:
        """Whether the sweep lost this host, tried again elsewhere, and here it is back.

        Looked up once, when the ranks have ended: what is recorded and what is cleared agree.
        """
        running = self.folder.load_running()
        if running is None:
            return True
        return (running.number, running.started_at) != (self.number, self.started_at)

    def _prepare_checkpoint(self) -> None:
        why = prepare(self.folder, self.cell, self.job)
        if why is not None:
            sys.stderr.write(f"{self.job.cell.name} starts from the beginning: {why}\n")

    @property
    def is_first(self) -> bool:
        """Whether this one's records count: the others only look after their host's ranks."""
        return self.job.first_rank == 0

    def _train(self) -> Verdict | None:
        if self.job.nodes is not None:
            return self._train_once()  # the hosts agreed on the port, and the folder is cleared
        for last_try in (*[False] * (_PORT_TRIES - 1), True):
            self.folder.clear_attempt()
            verdict = self._train_once()
            if verdict is None or last_try or not port_was_taken(self.folder, verdict):
                return verdict
        raise AssertionError("unreachable")

    def _train_once(self) -> Verdict | None:
        ranks = Ranks(self.job, self.cell, self.folder, self.starter)
        ranks.start()
        sampler = self._sampler(ranks)
        try:
            verdict = self._watch(ranks)
            if verdict is not None and verdict.cause == "hang":
                ranks.dump_stacks()
                time.sleep(0.5)
            grace_s = self.cell.sweep.grace_s if verdict is not None else 0.5
            left = end_descendants(grace_s)
        finally:
            if sampler is not None:
                sampler.stop()
        if left and verdict is None:
            return Verdict("exit", f"processes {left} could not be ended", None, None)
        return verdict

    def _sampler(self, ranks: Ranks) -> DeviceSampler | None:
        if not self.cell.monitor.devices:
            return None
        sampler = DeviceSampler(
            self.folder,
            {
                slot.uuid: rank
                for rank, slot in enumerate(self.job.slots, self.job.first_rank)
                if slot.uuid
            },
            ranks.trainers,
            self.cell.monitor.interval_s,
        )
        sampler.start()
        return sampler

    def _watch(self, ranks: Ranks) -> Verdict | None:
        """Wait for the end of the cell: None if every rank ended well."""
        config = self.cell.sweep
        began = time.monotonic()
        while True:
            self.wakeup.wait(_POLL_S)
            self.folder.beat()
            self.tenant.look()
            if self.cell.workload == "doctor":  # a pass over /proc: not beside what is timed
                self.workers.update(descendants(os.getpid()))
            ranks.collect()
            if ranks.failed:
                verdict = self.memory.name(blame(ranks, self.folder))
                verdict = name_absent(
                    verdict, ranks, self.folder, config.collective_timeout_s, self.job.world_size
                )
                # A cluster's SIGTERM goes to the ranks too, and may end them first.
                return _STOPPED if self.wakeup.stop_asked else verdict
            if not ranks.alive:
                return None
            if self.wakeup.stop_asked:
                return _STOPPED
            if self.wakeup.sweep_gone:
                return Verdict("interrupted", "the sweep ended", None, None)
            if config.timeout_s is not None and time.monotonic() - began > config.timeout_s:
                return Verdict(
                    "timeout", f"not done after sweep.timeout_s={config.timeout_s:g}", None, None
                )
            hang = self.liveness.hang([p.rank for p in ranks.alive])
            if hang is not None:
                return hang

    def _record_result(self) -> Outcome:
        job, cell, world = self.job, self.cell, self.job.world_size
        try:
            summaries = tuple(self.folder.load_rank(rank) for rank in range(world))
        except RecordError as error:
            return self._record_attempt(
                Verdict("exit", f"every rank exited with 0, but {error}", None, 0)
            )
        throughput = throughput_of(self.folder, summaries)
        per_device_batch, global_batch = batch_sizes_of(self.folder, summaries) or (
            cell.per_device_batch_size(world),
            cell.global_batch_size(world),
        )
        objective = objective_of(cell.sweep.objective, last_metrics(summaries), throughput)
        self.folder.save_result(
            CellResult(
                cell_id=job.cell.cell_id,
                config_id=job.cell.config_id,
                name=job.cell.name,
                repeat=job.cell.repeat,
                attempt=self.number,
                started_at=self.started_at,
                finished_at=time.time(),
                world_size=world,
                strategy=cell.strategy.name,
                scaling=cell.scaling,
                global_batch_size=global_batch,
                per_device_batch_size=per_device_batch,
                objective=objective,
                co_tenants=self._co_tenants(summaries),
                ranks=summaries,
                models=1 if cell.strategy.ONE_MODEL else world,
            )
        )
        if not cell.checkpoint.keep:
            drop_checkpoints(self.folder.path)
        return Outcome("done", self._unmeasured(objective, summaries[0]), objective, throughput)

    def _co_tenants(self, summaries: Sequence[RankSummary]) -> tuple[str, ...]:
        """Everyone who shared the host at any time, those that started later included."""
        self.wakeup.catch_up()
        self.tenant.look()
        told = (*self.job.co_tenants, *self.wakeup.neighbours, *self.tenant.neighbours)
        own = self.workers | {summary.pid for summary in summaries}
        others = foreign_processes(self.folder, own)
        return tuple(dict.fromkeys((*told, *others)))

    def _unmeasured(self, objective: float | None, summary: RankSummary) -> str:
        if objective is not None:
            return ""
        measured = [name for name, value in summary.metrics.items() if value is not None]
        return (
            f"sweep.objective: found {self.cell.sweep.objective!r}, which this cell did not "
            f"measure; allowed: {', '.join([*sorted(measured), 'global_samples_per_s'])}"
        )

    def _record_attempt(self, verdict: Verdict) -> Outcome:
        state: Literal["failed", "interrupted"] = "failed"
        if verdict.cause == "interrupted":
            state = "interrupted"
        verdict = advised(verdict, self.cell, self.job.world_size)
        self.folder.save_attempt(
            Attempt(
                number=self.number,
                outcome=state,
                cause=verdict.cause,
                message=verdict.message,
                rank=verdict.rank,
                exit_code=verdict.exit_code,
                last_lines=last_lines(self.folder, verdict.rank),
                started_at=self.started_at,
                finished_at=time.time(),
            )
        )
        return Outcome(state, verdict.message, cause=verdict.cause)


if __name__ == "__main__":
    sys.exit(main())
