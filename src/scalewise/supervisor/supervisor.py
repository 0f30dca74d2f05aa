"""One process a cell: starts its ranks, watches them, ends what is left, writes how it ended.

    python -m scalewise.supervisor.supervisor [descriptor of a lock]... < job

The locks are those of the sweep's folder and of the cell's devices. The ranks inherit them, so that
they are held until the last process of the cell has ended. The job is one line on standard input,
which then stays open: when it closes, the sweep is gone and so is this cell. The answer is one line
on standard output. It builds no configuration and reads no figures: what it needs stands in the
job. So it starts fast and costs nothing beside what it watches.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from scalewise.host import (
    Colocation,
    become_subreaper,
    descendants,
    end_descendants,
    host_id,
    keep_from_children,
    oom_kills,
)
from scalewise.records import CellFolder, RunningAttempt, read_heartbeat
from scalewise.supervisor.attempt import Try, conclude, foreign_processes, prepare
from scalewise.supervisor.failures import (
    blame,
    name_absent,
    name_memory_kill,
)
from scalewise.supervisor.job import Job, Outcome, Settings, Verdict, Wakeup, read_line
from scalewise.supervisor.ranks import Ranks, Starter, spawn

if TYPE_CHECKING:
    from scalewise.gpu import DeviceSampler


_POLL_S = 1.0
_STOPPED = Verdict("interrupted", "the sweep was stopped", None, None)


def main(starter: Starter = spawn, locks: Sequence[int] = ()) -> int:
    """Supervise the job on standard input; exit status 0 if the cell is done."""
    keep_from_children(locks)
    become_subreaper()
    wakeup = Wakeup()
    # Read from the descriptor: a buffered reader would swallow the end that says "gone".
    line, told = read_line()
    job = Job.from_line(line)
    wakeup.tell(told)
    outcome = Supervisor(job, wakeup, starter, locks).run()
    sys.stdout.buffer.write(outcome.to_line())
    sys.stdout.buffer.flush()
    return 0 if outcome.state == "done" else 1


class Supervisor:
    """One attempt at one cell."""

    def __init__(
        self, job: Job, wakeup: Wakeup, starter: Starter = spawn, locks: Sequence[int] = ()
    ) -> None:
        self.job = job
        self.starter = starter
        self.locks = tuple(locks)
        self.folder = CellFolder(Path(job.folder))
        self.wakeup = wakeup
        number = self.folder.next_attempt_number()
        self.this_try = Try(job, self.folder, number, time.time(), time.monotonic())
        self.liveness = Liveness(self.folder, job.settings)
        self.memory_kills = oom_kills()
        self.colocation = Colocation(str(self.folder.path.parent), job.cell.name)
        self.workers: set[int] = set()
        """Processes of the doctor's ranks, which are no strangers on its GPUs."""

    def run(self) -> Outcome:
        """Train the cell and record the result, or why there is none."""
        try:
            if self.is_first:
                one = self.this_try
                self.folder.save_running(RunningAttempt(one.number, one.started_at, self.job.slots))
                why = prepare(self.folder, self.job) if self.job.settings.checkpoints else None
                if why is not None:
                    sys.stderr.write(f"{self.job.cell.name} starts from the beginning: {why}\n")
            verdict = self._train()
            if self.is_first and self._superseded:
                message = f"{self.job.cell.name}: a later try has begun; this one records nothing"
                return Outcome("interrupted", message)
            if self.job.nodes is not None:
                verdict = conclude(self.folder, self.job.nodes, verdict)
                if not self.is_first:
                    return Outcome("failed", verdict.message) if verdict else Outcome("done")
            if verdict is None:
                return self.this_try.record_result(self._co_tenants)
            return self.this_try.record_failure(verdict)
        except OSError as error:
            # A full disk takes neither result nor attempt; the sweep still hears of it.
            end_descendants(0.0)
            return Outcome("failed", str(error), is_recorded=False)
        finally:
            self.colocation.leave()
            if self.is_first and not self._superseded:
                self.folder.clear_running()

    @cached_property
    def _superseded(self) -> bool:
        """Whether the sweep lost this host, tried again elsewhere, and here it is back.

        Looked up once, when the ranks have ended: what is recorded and what is cleared agree.
        """
        running = self.folder.find_running_attempt()
        if running is None:
            return True
        own = self.this_try
        return (running.number, running.started_at) != (own.number, own.started_at)

    @property
    def is_first(self) -> bool:
        """Whether this one's records count: the others only look after their host's ranks."""
        return self.job.first_rank == 0

    def _train(self) -> Verdict | None:
        if self.job.nodes is None:  # else the hosts have agreed, and the folder is cleared
            self.folder.clear_attempt()
        ranks = Ranks(self.job, self.folder, self.starter, self.locks)
        ranks.start()
        sampler = self._start_sampling(ranks)
        try:
            verdict = self._watch(ranks)
            if verdict is not None and verdict.cause == "hang":
                ranks.dump_stacks()
                time.sleep(0.5)
            grace_s = self.job.settings.grace_s if verdict is not None else 0.5
            left = end_descendants(grace_s)
        finally:
            if sampler is not None:
                sampler.stop()
        if left and verdict is None:
            return Verdict("exit", f"processes {left} could not be ended", None, None)
        return verdict

    def _start_sampling(self, ranks: Ranks) -> DeviceSampler | None:
        """Sample the devices, or tell the sweep's process of the ranks: then it does."""
        interval_s = self.job.settings.sample_every_s
        if interval_s is None:
            one, pids = self.this_try, tuple(process.pid for process in ranks.processes)
            running = RunningAttempt(one.number, one.started_at, self.job.slots, pids)
            self.folder.save_running(running)
            return None
        from scalewise.gpu import DeviceSampler, stats_path

        first = self.job.first_rank
        stats = stats_path(self.folder, host_id() if first else None)
        gpus = {slot.uuid: rank for rank, slot in enumerate(self.job.slots, first) if slot.uuid}
        sampler = DeviceSampler(
            self.folder,
            gpus,
            ranks.trainers,
            interval_s,
            stats if self.job.settings.seed_format else None,
        )
        sampler.start()
        return sampler

    def _watch(self, ranks: Ranks) -> Verdict | None:
        """Wait for the end of the cell: None if every rank ended well."""
        settings = self.job.settings
        began_s = time.monotonic()
        while True:
            self.wakeup.wait(_POLL_S)
            passed_s = time.monotonic() - began_s
            self.folder.beat()
            self.colocation.look()
            if settings.workload == "doctor":  # a pass over /proc: not beside what is timed
                self.workers.update(descendants(os.getpid()))
            ranks.collect()
            if ranks.failed:
                verdict = self._blame(ranks)
                # A cluster's SIGTERM goes to the ranks too, and may end them first.
                return _STOPPED if self.wakeup.stop_asked else verdict
            if not ranks.alive:
                return None
            if self.wakeup.stop_asked:
                return _STOPPED
            if self.wakeup.sweep_gone:
                return Verdict("interrupted", "the sweep ended", None, None)
            if settings.timeout_s is not None and passed_s > settings.timeout_s:
                limit = f"not done after sweep.timeout_s={settings.timeout_s:g}"
                return Verdict("timeout", limit, None, None)
            hang = self.liveness.hang([p.rank for p in ranks.alive])
            if hang is not None:
                return hang

    def _blame(self, ranks: Ranks) -> Verdict:
        """The failed rank, or the part of its surroundings, that ended the cell."""
        limit_s = self.job.settings.collective_timeout_s
        verdict = blame(ranks, self.folder)
        verdict = name_memory_kill(verdict, self.memory_kills, oom_kills())
        return name_absent(verdict, ranks, self.folder, limit_s, self.job.world_size)

    def _co_tenants(self, ranks: Collection[int]) -> tuple[str, ...]:
        """Everyone who shared the host at any time, those that started later included.

        ``ranks`` are the process ids of the cell's own.
        """
        self.wakeup.catch_up()
        self.colocation.look()
        told = (*self.job.co_tenants, *self.wakeup.neighbours, *self.colocation.neighbours)
        on_gpu = any(slot.kind == "cuda" for slot in self.job.slots)
        others = foreign_processes(self.folder, self.workers.union(ranks)) if on_gpu else ()
        return tuple(dict.fromkeys((*told, *others)))


class Liveness:
    """Reads the heartbeats of a cell's ranks.

    Ages are taken from a clock that nobody sets: a wall clock that jumps (NTP, a resumed laptop)
    neither makes a hang nor hides one.

    Args:
        folder: the cell's.
        settings: its time-outs.
        clock: seconds.
    """

    def __init__(
        self,
        folder: CellFolder,
        settings: Settings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._settings = settings
        self._clock = clock
        self._began = self._seen_at = clock()
        self._last: dict[int, tuple[int, float]] = {}

    def hang(self, alive: Sequence[int]) -> Verdict | None:
        """Why the living ranks count as hung; None while they do not."""
        now, limits = self._clock(), self._settings
        beats = {rank: read_heartbeat(self._folder.heartbeat_path(rank)) for rank in alive}
        silent = [rank for rank, beat in beats.items() if beat is None]
        if silent:
            age_s, limit_s = now - self._began, limits.start_timeout_s
            what = f"rank {', '.join(map(str, silent))} had not begun after {age_s:.0f} s"
            key = "start_timeout_s"
        else:
            last = {rank: (beat.step, beat.time) for rank, beat in beats.items() if beat}
            if last != self._last:
                self._last, self._seen_at = last, now
            age_s, limit_s = now - self._seen_at, limits.hang_timeout_s
            what = f"no rank made a step for {age_s:.0f} s"
            key = "hang_timeout_s"
        if age_s <= limit_s:
            return None
        message = f"{what} (sweep.{key}={limit_s:g}); the stacks of all ranks are in logs/"
        return Verdict("hang", message, None, None)


if __name__ == "__main__":
    sys.exit(main(locks=[int(word) for word in sys.argv[1:]]))
