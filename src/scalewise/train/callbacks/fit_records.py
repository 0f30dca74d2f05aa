"""The records of a monitored fit as a whole: its plan, its sign of life, and how it ended.

Nobody supervises a script of the user's own: it has to say itself what it ends of. Where it cannot
(SIGKILL, ``os._exit``, a host that goes down), its sign of life grows old, and readers tell that.
"""

from __future__ import annotations

import dataclasses
import fcntl
import math
import re
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Literal

from pytorch_lightning.utilities.exceptions import SIGTERMException

from scalewise.records import (
    Attempt,
    Cause,
    CellFolder,
    CellResult,
    DeviceInfo,
    PlannedCell,
    RankSummary,
    RunningAttempt,
    SweepFolder,
    SweepPlan,
)
from scalewise.records.fed import batch_sizes_of, data_shards_of, sum_over_shards
from scalewise.tenants import Tenant
from scalewise.train.callbacks.background import BackgroundDrain
from scalewise.train.failure import failure_kind, failure_line

_BEAT_S = 1.0
_LAST_LINES = 20
_PEER_IS_GONE = re.compile(r"Connection (reset|closed) by peer|remote process exited")
"""How gloo and NCCL say it; a rank that raised would have recorded it before its sockets closed."""


class FitRecords:
    """What rank 0 writes of a fit for all ranks; :meth:`break_off` alone is for any of them.

    Args:
        folder: the run's, inside that of the sweep which the runs of a script form.
        rank: of this process.
    """

    def __init__(self, folder: CellFolder, rank: int) -> None:
        self._folder = folder
        self._sweep = SweepFolder(folder.path.parent)
        self._rank = rank
        self._started_at, self._since = time.time(), time.monotonic()
        self._planned: PlannedCell | None = None
        self._beats: BackgroundDrain | None = None
        self._tenant: Tenant | None = None
        self._unknown: tuple[str, ...] = ()
        """Why it is not known who shares the host, where that is so."""

    def begin(self, devices: Sequence[DeviceInfo]) -> None:
        """Plan the run, and give a sign of life every second from now on.

        What the fit is made of is known later: until :meth:`repeat_of` it repeats nothing.
        """
        name = self._folder.name
        planned = PlannedCell(name, name, name, (), 0, len(devices))
        self._put_into_plan(lambda _: planned)
        self._folder.save_running(RunningAttempt(1, self._started_at, tuple(devices)))
        try:
            self._tenant = Tenant(str(self._sweep.path), name)
        except OSError as error:  # no reason to end a fit
            self._unknown = (f"not known: {error.strerror}",)
        self._beats = BackgroundDrain([lambda *_: self._beat()], _BEAT_S)

    def _beat(self) -> None:
        self._folder.beat()
        if self._tenant is not None:
            self._tenant.look()

    def _co_tenants(self) -> tuple[str, ...]:
        """Other fits and cells of this user on this host: several launchers may start one script.

        Processes of others on its GPUs are in the device series.
        """
        if self._tenant is None:
            return self._unknown
        self._tenant.look()
        return self._tenant.neighbours

    def repeat_of(self, config_id: str) -> None:
        """Plan it as one more run of the configuration ``config_id``."""
        planned = self._planned
        assert planned is not None

        def repeated(plan: SweepPlan) -> PlannedCell:
            repeat = sum(cell.config_id == config_id for cell in plan.cells)
            return dataclasses.replace(planned, config_id=config_id, repeat=repeat)

        self._put_into_plan(repeated)

    def finish(self, ranks: tuple[RankSummary, ...], strategy: str) -> None:
        """Save the result: the fit ended as it should."""
        assert self._planned is not None
        per_device, together = self._batch_sizes(ranks)
        self._folder.save_result(
            CellResult(
                cell_id=self._planned.cell_id,
                config_id=self._planned.config_id,
                name=self._planned.name,
                repeat=self._planned.repeat,
                attempt=1,
                started_at=self._started_at,
                finished_at=time.time(),
                elapsed_s=time.monotonic() - self._since,
                world_size=len(ranks),
                strategy=strategy,
                # Lightning's batch is per process, whatever the number of processes.
                scaling="weak",
                global_batch_size=together,
                per_device_batch_size=per_device,
                co_tenants=self._co_tenants(),
                ranks=ranks,
            )
        )
        self.end()

    def _batch_sizes(self, ranks: tuple[RankSummary, ...]) -> tuple[int, int]:
        """Samples of a step, of one rank and of all.

        Of the largest step: where the data is no multiple of the batch, the last step of an epoch
        is smaller, and a mean over the steps would differ between fits that ask for the same.
        """
        found = batch_sizes_of(ranks)
        if found is not None:
            return found
        mean = math.ceil(ranks[0].samples_fed / max(1, ranks[0].steps_completed))
        return mean, sum_over_shards([mean] * len(ranks), data_shards_of(ranks))

    def end(self) -> None:
        """No more signs of life: it has a result, or a record of why not."""
        if self._beats is not None:
            self._beats.stop()
            self._folder.clear_running()
            self._beats = None
        if self._tenant is not None:
            self._tenant.leave()
            self._tenant = None

    def _put_into_plan(self, plan_it: Callable[[SweepPlan], PlannedCell]) -> None:
        """In place of what was known of this run before; others may do so at the same time."""
        with (self._sweep.path / "plan.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            plan = (
                self._sweep.load_plan()
                if self._sweep.plan_path.exists()
                else SweepPlan(time.time(), tuple(sys.argv), 0, ())
            )
            planned = plan_it(plan)
            others = tuple(cell for cell in plan.cells if cell.name != planned.name)
            self._sweep.save_plan(dataclasses.replace(plan, cells=(*others, planned)))
        self._planned = planned

    def break_off(self, error: BaseException, steps: int) -> str | None:
        """Record that ``error`` ended the fit after ``steps`` steps; returns that as a line.

        None if another rank was first: what one dies of is the cause, the others lose a peer.
        """
        if any(self._folder.attempts()):
            return None
        outcome, cause, what = _judge(error)
        message = f"rank {self._rank}: {what} (after {steps} steps)"
        code = error.code if isinstance(error, SystemExit) else None
        lines = "".join(traceback.format_exception(error)).splitlines()[-_LAST_LINES:]
        self._folder.save_attempt(
            Attempt(
                number=1,
                outcome=outcome,
                cause=cause,
                message=message,
                rank=self._rank,
                exit_code=code if isinstance(code, int) else None,
                last_lines=tuple(lines),
                started_at=self._started_at,
                finished_at=time.time(),
                elapsed_s=time.monotonic() - self._since,
            )
        )
        return message


def _judge(error: BaseException) -> tuple[Literal["failed", "interrupted"], Cause, str]:
    if isinstance(error, SIGTERMException):  # Lightning's, a SystemExit
        return "interrupted", "signal", "ended by SIGTERM"
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", "interrupted", "interrupted by Ctrl-C (SIGINT)"
    if isinstance(error, SystemExit):
        status = 0 if error.code is None else error.code
        return "failed", "exit", f"the script left with exit status {status} amid the fit"
    line = failure_line(error)
    if _PEER_IS_GONE.search(line):
        line = f"another rank is gone and left no reason (SIGKILL, os._exit): {line}"
    return "failed", failure_kind(error), line
