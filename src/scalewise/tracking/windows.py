"""Steps, of which there may be thousands a second, as one row a window for the trackers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from scalewise.records import PHASES, STEP_DTYPE, WARMUP

_MIN_WINDOW_NS: Final = 500_000_000


@dataclass(frozen=True)
class WindowRow:
    """What the ranks did in one window of steps."""

    step: int
    """The last step of the window."""
    start_ns: int
    """``perf_counter_ns`` of rank 0 at the start of that step."""
    values: dict[str, float]


@dataclass
class StepWindows:
    """Cuts the steps of all ranks at the same places.

    A window ends at the first multiple of ``every_n_steps`` that is half a second or more after
    its start, by rank 0's own clock: the cuts depend on what was recorded alone, so that
    mirroring the same steps again gives the same rows. Warm-up steps are left out. A long step
    stays in: which step is one is known when the run has ended, and the report says it.
    """

    every_n_steps: int
    world_size: int
    _rows: dict[int, npt.NDArray[np.void]] = field(default_factory=dict)
    _samples: dict[int, int] = field(default_factory=dict)
    _total_ms: dict[int, float] = field(default_factory=dict)

    def add(self, rank: int, rows: npt.NDArray[np.void]) -> None:
        """More steps of ``rank``, in order; shape ``[steps]`` of ``STEP_DTYPE``."""
        timed = rows[(rows["flags"] & WARMUP) == 0]
        self._rows[rank] = np.concatenate([self._rows.get(rank, _NO_ROWS), timed])
        step_ms = timed[f"{_timeline(timed)}_step_ms"].sum(dtype=np.float64)
        self._samples[rank] = self._samples.get(rank, 0) + int(timed["samples"].sum())
        self._total_ms[rank] = self._total_ms.get(rank, 0.0) + float(step_ms)

    def global_samples_per_s(self) -> float | None:
        """Samples of all ranks over the slowest rank's time, all timed steps; None if unknown."""
        slowest_ms = max(self._total_ms.values(), default=0.0)
        if len(self._total_ms) < self.world_size or not slowest_ms > 0:
            return None
        return sum(self._samples.values()) / slowest_ms * 1000

    def cut(self, *, final: bool) -> Iterator[WindowRow]:
        """Windows every rank has completed; with ``final``, what is left is one more."""
        while (end := self._window_end(final)) is not None:
            taken = {}
            for rank, rows in self._rows.items():
                inside = rows["step"] <= end
                taken[rank] = rows[inside]
                self._rows[rank] = rows[~inside]
            yield _summarise(end, taken)

    def _window_end(self, final: bool) -> int | None:
        rows = self._rows.get(0, _NO_ROWS)
        if len(rows) == 0 or (len(self._rows) < self.world_size and not final):
            return None
        late_enough = rows["start_ns"] - rows["start_ns"][0] >= _MIN_WINDOW_NS
        ends = rows["step"][late_enough & (rows["step"] % self.every_n_steps == 0)]
        if len(ends) == 0:
            return int(rows["step"][-1]) if final else None
        end = int(ends[0])
        reached = all(len(r) and r["step"][-1] >= end for r in self._rows.values())
        return end if reached or final else None


_NO_ROWS: Final = np.empty(0, STEP_DTYPE)


def _timeline(rows: npt.NDArray[np.void]) -> str:
    """``device`` where every step was timed there, else ``host``: the two are never mixed."""
    return "host" if np.isnan(rows["device_step_ms"]).any() else "device"


def _summarise(end: int, ranks: dict[int, npt.NDArray[np.void]]) -> WindowRow:
    lead = ranks[0]
    # A rank cut off earlier than the others has no say in this window.
    whole = {rank: rows for rank, rows in ranks.items() if len(rows) == len(lead)}
    line = _timeline(np.concatenate(list(whole.values())))
    values: dict[str, float] = {}
    step_ms = [float(np.mean(r[f"{line}_step_ms"], dtype=np.float64)) for r in whole.values()]
    slowest_ms = max(step_ms)
    if np.isfinite(slowest_ms) and slowest_ms > 0:
        values["step_time_ms"] = slowest_ms
        if len(whole) == len(ranks):
            samples = sum(int(r["samples"].sum()) for r in whole.values())
            values["global_samples_per_s"] = samples / (slowest_ms * len(lead)) * 1000
    for phase in PHASES:
        times = np.concatenate([r[f"{line}_{phase}_ms"] for r in whole.values()])
        if not np.isnan(times).all():
            values[f"phases/{phase}_ms"] = float(np.nanmean(times.astype(np.float64)))
    arrival_ms = {r: float(np.mean(rows[f"{line}_arrival_ms"])) for r, rows in whole.items()}
    values.update(_balance(arrival_ms))
    return WindowRow(end, int(lead["start_ns"][-1]), values)


def _balance(arrival_ms: dict[int, float]) -> dict[str, float]:
    """Time to the last gradient of each rank, and its CV across ranks in percent.

    CV = population standard deviation / mean: the ranks are all there are, not a sample.
    """
    times = np.array(list(arrival_ms.values()), dtype=np.float64)
    if len(times) < 2 or not np.isfinite(times).all() or times.mean() <= 0:
        return {}
    cv_percent = float(times.std() / times.mean() * 100)
    by_rank = {f"balance/rank_{rank}_arrival_ms": ms for rank, ms in arrival_ms.items()}
    return {
        "balance/arrival_cv_percent": cv_percent,
        # The name that dashboards made for the earlier GPU monitor look for; arrival, because
        # memory cannot show a straggler.
        "gpu_load_balance_cv": cv_percent,
        **by_rank,
    }
