"""How far a sweep is: read from its folder alone, whether or not it runs, and on any host.

The engine of a sweep makes the same :class:`SweepStatus` of what it knows itself.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from scalewise.host import FileLock
from scalewise.records import (
    UNFINISHED,
    CellFolder,
    CellResult,
    Ending,
    PlannedCell,
    State,
    SweepFolder,
    SweepPlan,
    cell_state,
    load_or_none,
    read_heartbeat,
    typed_anew,
)


@dataclass(frozen=True)
class CellStatus:
    name: str
    cell_id: str
    config_id: str
    ending: Ending
    """How it ended, or how far it is; the message says why there is no result."""
    devices: int | None
    """None while it is not known how many it will get."""
    step: int | None = None
    total_steps: int | None = None
    global_samples_per_s: float | None = None
    """Measured without warm-up for a done cell; of a running one since training began, warm-up
    included: an indication."""
    elapsed_s: float | None = None
    """Seconds that a done cell took, or a running one has run."""
    seconds_left: float | None = None
    """Seconds until the last step of a running cell at its present pace."""
    problem: str = ""
    """Why samples/s of a done cell are in doubt or missing, or nobody can tell whether it runs."""
    swept: str = ""
    """Overrides that tell it from cells of the same name but for the repeat, e.g. ``lr=0.1``."""
    log: str | None = None
    """Standard error of the rank that failed first."""

    @property
    def state(self) -> State:
        return self.ending.outcome

    @property
    def label(self) -> str:
        """``mlp-tabular-ddp-r0-1f463a41 (lr=0.1)``."""
        return f"{self.name} ({self.swept})" if self.swept else self.name


def waiting_cell(planned: PlannedCell, devices: int | None) -> CellStatus:
    """A cell of which nothing is known but the plan."""
    return CellStatus(planned.name, planned.cell_id, planned.config_id, Ending("waiting"), devices)


def with_progress(cell: CellStatus, folder: CellFolder) -> CellStatus:
    """``cell`` with what the heartbeats of its ranks tell: the slowest says how far it is."""
    beats = [read_heartbeat(folder.heartbeat_path(rank)) for rank in range(cell.devices or 0)]
    live = [beat for beat in beats if beat is not None and beat.started_at]
    if not live or len(live) < len(beats):
        return replace(cell, step=0)
    slowest = min(live, key=lambda beat: beat.step)
    elapsed_s = slowest.time - slowest.started_at
    steps, samples = slowest.step, sum(beat.samples for beat in live)
    total = slowest.total_steps if slowest.total_steps >= 0 else None
    to_do = max(total - steps, 0) if total is not None and steps else None
    return replace(
        cell,
        step=steps,
        total_steps=total,
        global_samples_per_s=samples / elapsed_s if elapsed_s > 0 and samples else None,
        seconds_left=None if to_do is None else to_do * elapsed_s / steps,
    )


def read_cell(planned: PlannedCell, folder: CellFolder, now: float, measures: bool) -> CellStatus:
    """The status of a cell at the Unix time ``now``; ``measures`` its samples/s if it is done."""
    seen = cell_state(folder, planned.cell_id, now)
    cell = replace(waiting_cell(planned, planned.devices), ending=seen.ending, problem=seen.problem)
    if (result := seen.result) is not None:
        rate, problem = _measured(folder, result) if measures else (None, "")
        steps = result.ranks[0].steps_completed
        return replace(
            cell, devices=result.world_size, step=steps, total_steps=steps, problem=problem,
            global_samples_per_s=rate, elapsed_s=result.elapsed_s, seconds_left=0.0,
        )  # fmt: skip
    log, running = folder.find_log(seen.ending), seen.running
    cell = replace(cell, log=None if log is None else str(log))
    if seen.state not in ("running", "interrupted"):
        return cell
    devices = cell.devices if running is None else len(running.devices)
    told = with_progress(cell := replace(cell, devices=devices), folder)
    if seen.state == "running" and running is not None:
        return replace(told, elapsed_s=now - running.started_at)
    return replace(cell, step=told.step, total_steps=told.total_steps) if told.step else cell


def _measured(folder: CellFolder, result: CellResult) -> tuple[float | None, str]:
    """Global samples/s, and why a cell that took steps has none, or a doubtful one."""
    from scalewise.analysis import read_cell_steps

    # The same reading and the same words as those of a report.
    figures = read_cell_steps(folder, result).figures
    told = "; ".join(figures.faults)
    rate = None if figures.throughput is None else figures.throughput.global_samples_per_s
    if rate is None:
        stepped = any(rank.step_rows for rank in result.ranks)
        reason = told or figures.missing["throughput"]
        return None, f"samples/s are not known: {reason}" if stepped else told
    if result.rehearsed is not None:
        return None, told
    return rate, f"samples/s are in doubt: {told}" if told else ""


class Durations:
    """Mean seconds of the ended cells of each configuration, and of all."""

    def __init__(self) -> None:
        self._seconds: dict[str, list[float]] = {}
        self._all: list[float] = []

    def add(self, config_id: str, seconds: float) -> None:
        self._seconds.setdefault(config_id, []).append(seconds)
        self._all.append(seconds)

    def of(self, config_id: str) -> float | None:
        """Mean of the configuration's cells, else of all; None before the first has ended."""
        known = self._seconds.get(config_id, self._all)
        return sum(known) / len(known) if known else None

    def seconds_left(
        self, cells: Sequence[CellStatus], slots: int | None, packed: bool
    ) -> float | None:
        """Until the last of ``cells``, which run or wait, has ended; None while nothing tells.

        ``slots`` are devices of the one host; None on a cluster, which runs as many cells side by
        side as now. ``packed``: device-time over devices, and at least the longest.
        """
        if not cells:
            return 0.0
        known = self if self._all else _first_steps(cells)
        left = [_left_of(cell, known.of(cell.config_id)) for cell in cells]
        times = [seconds for seconds in left if seconds is not None]
        if len(times) < len(left):
            return None
        if slots is not None and not packed:
            return sum(times)
        all_devices = slots or max(cell.devices or 1 for cell in cells)
        devices = [cell.devices or all_devices for cell in cells]
        if slots is None:
            running = [d for d, cell in zip(devices, cells, strict=True) if cell.state == "running"]
            slots = max(sum(running), *devices)
        return max(sum(s * n for s, n in zip(times, devices, strict=True)) / slots, *times)


def _first_steps(cells: Sequence[CellStatus]) -> Durations:
    """Durations of running cells by their own steps, before the first one has ended."""
    found = Durations()
    for cell in cells:
        if cell.elapsed_s is not None and cell.seconds_left is not None:
            found.add(cell.config_id, cell.elapsed_s + cell.seconds_left)
    return found


def _left_of(cell: CellStatus, mean_s: float | None) -> float | None:
    if cell.elapsed_s is None:
        return mean_s
    if cell.seconds_left is not None:
        return cell.seconds_left
    return None if mean_s is None else max(mean_s - cell.elapsed_s, 0.0)


@dataclass(frozen=True)
class SweepStatus:
    """All cells of a sweep and when the last of them will have ended."""

    folder: str
    time: float
    """Unix time at which it was read."""
    policy: str
    cells: tuple[CellStatus, ...]
    seconds_left: float | None
    """Seconds for cells that run, wait, or run again when the sweep is resumed;
    None if nothing tells yet."""
    held: bool | None = False
    """Whether a process of this host runs the sweep, be it between two cells; None if unknown."""
    round: int | None = None
    """The latest round that has begun, where more cells may come; None where these are all."""

    @property
    def running(self) -> bool:
        return bool(self.held) or any(cell.state == "running" for cell in self.cells)

    @property
    def to_do(self) -> Sequence[CellStatus]:
        """Cells that run or wait; of a sweep that was cut short, all that resuming it runs."""
        left = [cell for cell in self.cells if cell.state in UNFINISHED]
        ended = not self.running and left
        return [cell for cell in self.cells if cell.state != "done"] if ended else left

    def count(self) -> dict[str, int]:
        return dict(Counter(cell.state for cell in self.cells))


class StatusReader:
    """Reads a sweep again and again; cells that are done are read once.

    ``most_measured`` is how many done cells have their samples/s, for which their steps are read:
    of more, those that come first in the plan; None: all of them.
    """

    def __init__(self, folder: Path, most_measured: int | None = None) -> None:
        self.sweep = SweepFolder(folder)
        self._left_to_measure = math.inf if most_measured is None else most_measured
        self._cells: dict[str, CellStatus] = {}
        self._swept: Mapping[str, str] = {}
        self._most: dict[str, int] = {}

    def read(self, now: float | None = None, changed: Collection[str] | None = None) -> SweepStatus:
        """The state of every cell at the Unix time ``now``.

        With ``changed`` only cells with these ids are read anew. Raises :class:`RecordError` where
        there is no plan.
        """
        now = time.time() if now is None else now
        plan, held = self._load_plan(), is_held(self.sweep.lock_path)
        for planned in plan.cells:
            known = self._cells.get(planned.cell_id)
            is_old = known is not None and (
                known.state == "done" if changed is None else planned.cell_id not in changed
            )
            if not is_old:
                measures = self._left_to_measure > 0
                folder = self.sweep.cell(planned.name)
                cell = read_cell(planned, folder, now, measures)
                # Of a sweep that was stopped it is as its last try ended, which gives the reason.
                if held is not False and cell.state != "done" and folder.is_queued_again():
                    cell = waiting_cell(planned, planned.devices)
                self._left_to_measure -= cell.state == "done"
                self._cells[planned.cell_id] = replace(cell, swept=self._swept[planned.cell_id])
        each = [(planned, self._cells[planned.cell_id]) for planned in plan.cells]
        done = [planned for planned, cell in each if cell.state == "done"]
        cells = tuple(replace(c, ending=typed_anew(own, c.ending, done)) for own, c in each)
        durations = Durations()
        for cell in cells:
            if cell.state == "done" and cell.elapsed_s is not None:
                durations.add(cell.config_id, cell.elapsed_s)
        slots, packed = plan.slots, plan.policy == "packed"
        found = SweepStatus(str(self.sweep.path), now, plan.policy, cells, None, held)
        found = replace(found, seconds_left=durations.seconds_left(found.to_do, slots, packed))
        if not held or not self._more_may_come(plan):
            return found
        begun = [one.repeat + 1 for one, cell in zip(plan.cells, cells, strict=True)
                 if cell.state != "waiting"]  # fmt: skip
        return replace(found, round=max(begun, default=1))

    def _more_may_come(self, plan: SweepPlan) -> bool:
        """Whether ``repeats=auto`` may add rounds to what is planned."""
        planned = Counter(one.config_id for one in plan.cells)
        distinct = {one.config_id: one for one in plan.cells}.values()
        return any(self._most_runs(one) > planned[one.config_id] for one in distinct)

    def _most_runs(self, planned: PlannedCell) -> int:
        """Of its configuration; 0 where no rounds are added."""
        if planned.config_id not in self._most:
            plain = load_or_none(self.sweep.cell(planned.name).load_config)
            if plain is None:
                return 0  # not written yet
            adapts = plain.get("repeats") == "auto"
            self._most[planned.config_id] = plain["max_repeats"] if adapts else 0
        return self._most[planned.config_id]

    def label(self, planned: PlannedCell) -> str:
        """The name of a cell with what was swept, once the plan tells."""
        if planned.cell_id not in self._swept and self.sweep.plan_path.exists():
            self._load_plan()
        words = self._swept.get(planned.cell_id)
        return f"{planned.name} ({words})" if words else planned.name

    def _load_plan(self) -> SweepPlan:
        from scalewise.analysis import swept_words

        plan = self.sweep.load_plan()
        self._swept = swept_words(plan.cells)
        return plan


def is_held(lock: Path) -> bool | None:
    """Whether a process has the lock of a sweep's folder; None where that cannot be asked.

    To ask is to hold it for an instant, which the engine allows for.
    """
    probe = FileLock(lock)
    try:
        return lock.exists() and not probe.try_acquire()
    except OSError:  # another user's, or a file system without locks
        return None
    finally:
        probe.release()
