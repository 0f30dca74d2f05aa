"""One process a cell: starts its ranks, watches them, ends what is left, writes how it ended.

    python -m scalewise.supervisor.supervisor [descriptor of a lock]... < job

The locks are those of the sweep's folder and of the cell's devices. The ranks inherit them, so that
they are held until the last process of the cell has ended. The job is one line on standard input,
which then stays open: when it closes, the sweep is gone and so is this cell. The answer is one line
on standard output. It builds no configuration and reads no figures: what it needs stands in the
job. So it starts fast and costs nothing beside what it watches.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from pathlib import Path

from scalewise.host import (
    STACKS_SIGNAL,
    Colocation,
    become_subreaper,
    end_descendants,
    host_id,
    keep_from_children,
    kill,
    oom_kills,
)
from scalewise.records import (
    CellFolder,
    CellResult,
    Ending,
    RecordError,
    RunningAttempt,
    batch_sizes_of,
    line_that_raised,
    load_or_none,
    read_heartbeat,
)
from scalewise.supervisor.failures import (
    asked_for_torchrun,
    first_failure,
    last_lines,
    name_absent,
    name_memory_kill,
    name_script_end,
)
from scalewise.supervisor.job import Job, Settings, Wakeup, from_line, read_line, to_line
from scalewise.supervisor.others import conclude, foreign_processes
from scalewise.supervisor.ranks import Ranks, Starter, spawn

_POLL_S = 1.0
_LEAVES_WITHIN_S = 3.0
"""For a script to leave by itself once its recorder has told an error."""
_STOPPED = Ending("interrupted", "interrupted", "the sweep was stopped")


def main(starter: Starter = spawn, locks: Sequence[int] = ()) -> int:
    """Supervise the job on standard input; exit status 0 if the cell is done."""
    keep_from_children(locks)
    become_subreaper()
    wakeup = Wakeup()
    # Read from the descriptor: a buffered reader would swallow the end that says "gone".
    ending = Supervisor(from_line(Job, read_line()), wakeup, starter, locks).run()
    sys.stdout.buffer.write(to_line(ending))
    sys.stdout.buffer.flush()
    return 0 if ending.outcome == "done" else 1


class Supervisor:
    def __init__(
        self, job: Job, wakeup: Wakeup, starter: Starter = spawn, locks: Sequence[int] = ()
    ) -> None:
        self.job = job
        self.starter = starter
        self.locks = tuple(locks)
        self.folder = CellFolder(Path(job.folder))
        self.wakeup = wakeup
        self.number = self.folder.next_attempt_number()
        self.started_at, self.began_s = time.time(), time.monotonic()
        self.liveness = Liveness(self.folder, job.settings)
        self.memory_kills = oom_kills()
        self.colocation = Colocation(str(self.folder.path.parent), job.cell.name)

    def run(self) -> Ending:
        """Train the cell and record the result, or why there is none."""
        try:
            if self.is_first:
                running = RunningAttempt(self.number, self.started_at, self.job.slots)
                self.folder.save_running(running)
            ending = self._train()
            if self.job.nodes is not None:
                ending = conclude(self.folder, self.job.nodes, ending)
                if not self.is_first:
                    return replace(ending, number=self.number)
            if ending.outcome == "done":
                return self.record_result()
            return self.record_failure(ending)
        except OSError as full:
            # A full disk takes neither result nor attempt; the sweep still hears of it.
            end_descendants(0.0)
            return Ending("failed", "disk", f"{full.filename or self.folder.path}: {full.strerror}")
        finally:
            self.colocation.leave()
            if self.is_first:
                self.folder.clear_running()

    @property
    def is_first(self) -> bool:
        """Whether this one's records count: the others only look after their host's ranks."""
        return self.job.first_rank == 0

    def _train(self) -> Ending:
        if self.job.nodes is None:  # else the hosts have agreed, and the folder is cleared
            self.folder.clear_attempt()
        asked = bool(self.job.settings.script) and asked_for_torchrun(self.folder, self.job.cell)
        ranks = Ranks(self.job, self.folder, self.starter, self.locks, asked)
        ranks.start()
        with self._sampling(ranks):
            ending = self._watch(ranks)
            if self.job.settings.script:
                ending = name_script_end(ending, self.job, self.folder, ranks)
            if ending.cause == "hang":
                for pid in ranks.trainers().values():
                    kill(pid, STACKS_SIGNAL)  # each writes the stacks of its threads to its log
                time.sleep(0.5)
            left = end_descendants(0.5 if ending.outcome == "done" else self.job.settings.grace_s)
            ended_s = time.monotonic()
        # A sampler within a driver call that hangs ends after ten seconds, none of the cell's.
        self.began_s += time.monotonic() - ended_s
        if left and ending.outcome == "done":
            return Ending("failed", "exit", f"processes {left} could not be ended")
        return ending

    def _sampling(self, ranks: Ranks) -> AbstractContextManager[object]:
        interval_s = self.job.settings.sample_every_s
        if interval_s is None:
            return nullcontext()
        # The ranks have started by now, and import much more.
        from scalewise.gpu import DeviceSampler

        first, stats = self.job.first_rank, None
        if self.job.settings.seed_format:
            from scalewise.gpu import stats_path

            stats = stats_path(self.folder, host_id() if first else None)
        gpus = {slot.uuid: rank for rank, slot in enumerate(self.job.slots, first) if slot.uuid}
        return closing(DeviceSampler(self.folder, gpus, ranks.trainers, interval_s, stats))

    def _watch(self, ranks: Ranks) -> Ending:
        settings = self.job.settings
        began_s = time.monotonic()
        while True:
            self.wakeup.wait(_POLL_S)
            passed_s = time.monotonic() - began_s
            self.folder.beat()
            self.colocation.look()
            ranks.collect()
            if ranks.failed:
                ending = self._first_failure(ranks)
                # A cluster's SIGTERM goes to the ranks too, and may end them first.
                return _STOPPED if self.wakeup.stop_asked else ending
            if not ranks.alive:
                return Ending("done")
            if settings.script and self._has_given_up(ranks):
                return self._first_failure(ranks)
            if self.wakeup.stop_asked:
                return _STOPPED
            if self.wakeup.sweep_gone:
                return Ending("interrupted", "interrupted", "the sweep ended")
            if settings.timeout_s is not None and passed_s > settings.timeout_s:
                limit = f"not done after sweep.timeout_s={settings.timeout_s:g}"
                return Ending("failed", "timeout", limit)
            hang = self.liveness.hang([p.rank for p in ranks.alive])
            if hang is not None:
                return hang

    def _has_given_up(self, ranks: Ranks) -> bool:
        """Whether a rank has told an error, and its script goes on without what trained."""
        told = (load_or_none(self.folder.load_rank_error, p.rank) for p in ranks.alive)
        return any(one and time.time() - one.finished_at > _LEAVES_WITHIN_S for one in told)

    def _first_failure(self, ranks: Ranks) -> Ending:
        """The failed rank, or the part of its surroundings, that ended the cell."""
        limit_s = self.job.settings.collective_timeout_s
        ending = first_failure(ranks, self.folder)
        ending = name_memory_kill(ending, self.memory_kills, oom_kills())
        return name_absent(ending, ranks, self.folder, limit_s, self.job.world_size)

    def record_result(self) -> Ending:
        """Every rank ended well: write ``result.json``, or the attempt if one left no summary."""
        job, settings, world = self.job, self.job.settings, self.job.world_size
        try:
            summaries = tuple(self.folder.load_rank(rank) for rank in range(world))
        except RecordError as error:
            why = f"every rank exited with 0, but {error}"
            return self.record_failure(Ending("failed", "exit", why, exit_code=0))
        # What a script feeds is known from its ranks alone.
        asked = None if settings.script else settings.batch_sizes
        per_device_batch, global_batch = batch_sizes_of(summaries) or asked or (None, None)
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
                co_tenants=self._co_tenants({summary.pid for summary in summaries}),
                ranks=summaries,
                models=1 if settings.one_model else world,
            )
        )
        return Ending("done", number=self.number)

    def record_failure(self, ending: Ending) -> Ending:
        """Write the attempt: what failed, where, the rank's last lines."""
        advice = self.job.settings.memory_advice if ending.cause == "oom" else ""
        lines = last_lines(self.folder, ending.rank)
        raised_at = ending.raised_at
        if raised_at is None and ending.outcome == "failed" and ending.cause != "config":
            raised_at = line_that_raised("\n".join(lines))
        return self.folder.save_attempt(
            replace(
                ending,
                message=f"{ending.message}; {advice}" if advice else ending.message,
                raised_at=raised_at,
                last_lines=lines,
                number=self.number,
                started_at=self.started_at,
                finished_at=time.time(),
                elapsed_s=time.monotonic() - self.began_s,
            )
        )

    def _co_tenants(self, ranks: Collection[int]) -> tuple[str, ...]:
        """Everyone who shared the host at any time; ``ranks`` are the cell's own process ids."""
        self.colocation.look()
        on_gpu = any(slot.kind == "cuda" for slot in self.job.slots)
        others = foreign_processes(self.folder, ranks) if on_gpu else ()
        return tuple(dict.fromkeys([*self.job.co_tenants, *self.colocation.neighbours, *others]))


class Liveness:
    """Reads the heartbeats of a cell's ranks.

    Ages are taken from a clock that nobody sets: a wall clock that jumps (NTP, a resumed laptop)
    neither makes a hang nor hides one.
    """

    def __init__(
        self, folder: CellFolder, settings: Settings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder = folder
        self._settings = settings
        self._clock = clock
        self._began = self._seen_at = clock()
        self._last: dict[int, tuple[int, float]] = {}

    def hang(self, alive: Sequence[int]) -> Ending | None:
        """Why the living ranks count as hung; None while they do not."""
        now, limits = self._clock(), self._settings
        beats = {rank: read_heartbeat(self._folder.heartbeat_path(rank)) for rank in alive}
        silent = [rank for rank, beat in beats.items() if beat is None]
        if silent:
            age_s, limit_s = now - self._began, limits.start_timeout_s
            begun = (
                "stepped no optimizer of torch.optim in" if limits.script else "had not begun after"
            )
            what = f"rank {', '.join(map(str, silent))} {begun} {age_s:.0f} s"
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
        return Ending("failed", "hang", message)


if __name__ == "__main__":
    sys.exit(main(locks=[int(word) for word in sys.argv[1:]]))
