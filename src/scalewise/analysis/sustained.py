"""Burst or sustained: is a training as fast after minutes as in the seconds that were timed?

Power, temperatures and clocks settle long after a window of seconds has ended. One cell of a sweep
goes on for minutes (``measure.sustained``); its end is set against its own beginning, in one set of
processes on the same devices, so nothing but time lies between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from scalewise.analysis.configuration import Configuration
from scalewise.analysis.model import CellRecords, is_timed, workload
from scalewise.analysis.steps import NotMeasuredError, common_steps, mean_of_known
from scalewise.records import StepSeries

BURST_FROM = 1.02
"""Ratio of step times above which the timed seconds were a burst."""
_LATE_S = 60.0
_LATE_SHARE = 0.2
"""The end: the last minute, or so much of the time where that is shorter."""
_FEWEST_STEPS = 5
_FEWEST_STRETCHES = 3
_DEVICE_FIGURES = ("sm_clock_mhz", "memory_clock_mhz", "power_w", "temperature_c")
_OF_THE_CELL = (
    "workload", "measure", "max_steps", "max_epochs", "repeats", "precision_percent",
    "max_repeats", "sweep", "tracking", "monitor",
)  # fmt: skip
"""Keys in which a sustained cell may differ from those whose speed it checks."""


@dataclass(frozen=True)
class Window:
    """A part of the timed steps of a run."""

    seconds: float
    steps: int
    step_time_ms: float
    """Mean of the slowest rank."""
    devices: Mapping[str, float | None]
    """``sm_clock_mhz``, ``memory_clock_mhz``, ``power_w``, ``temperature_c``: means over samples
    and devices; None where none was taken."""


@dataclass(frozen=True)
class Sustained:
    """The end of a long run beside its beginning."""

    cell: str
    seconds: float
    """Of timed steps in all."""
    early: Window
    """As long as the timed steps of the other cells of its configuration."""
    late: Window
    noise: float | None
    """Two standard deviations of the mean step of stretches of the end that are as long as
    ``early``, over the mean of the end; None where there are fewer than three."""

    @property
    def ratio(self) -> float:
        """Step time at the end over that at the beginning."""
        return self.late.step_time_ms / self.early.step_time_ms

    @property
    def is_burst(self) -> bool:
        """Whether steps are longer at the end by over 2 %, and by more than such windows vary."""
        return self.ratio > max(BURST_FROM, 1 + (self.noise or 0.0))

    def __str__(self) -> str:
        change = f"{100 * abs(self.ratio - 1):.1f} %"
        over = f"sustained over {self.seconds:,.0f} s"
        if self.is_burst:
            clock = self._change("sm_clock_mhz", "MHz")
            longer = f"burst: after {self.seconds:,.0f} s steps take {change} longer"
            return longer + (f" ({clock})" if clock else "")
        if self.ratio > BURST_FROM:
            varies = f"{100 * (self.noise or 0.0):.1f} %"
            return f"{over}: steps take {change} longer, of which windows differ by {varies} anyway"
        if self.ratio < 2 - BURST_FROM:
            return f"{over}: steps take {change} less in the end"
        return f"{over}: within {change}"

    @property
    def details(self) -> str:
        """Both windows in one line, with what the devices did."""
        named = {"sm_clock_mhz": ("SM clock", "MHz"), "memory_clock_mhz": ("memory clock", "MHz"),
                 "power_w": ("power", "W"), "temperature_c": ("temperature", "°C")}  # fmt: skip
        told = ((what, self._change(name, unit)) for name, (what, unit) in named.items())
        devices = "".join(f"; {what} {change}" for what, change in told if change)
        return (
            f"last {self.late.seconds:,.3g} of {self.seconds:,.0f} s of timed steps against the "
            f"first {self.early.seconds:,.3g} s: step {self.early.step_time_ms:,.3g} -> "
            f"{self.late.step_time_ms:,.3g} ms (ratio {self.ratio:.3f}){devices}"
        )

    def _change(self, name: str, unit: str) -> str:
        early, late = self.early.devices[name], self.late.devices[name]
        if early is None or late is None:
            return ""
        return f"{early:,.0f} -> {late:,.0f} {unit}"


def sustained_by_configuration(
    configs: Sequence[Configuration],
) -> tuple[Mapping[str, Sustained], tuple[str, ...]]:
    """By the ``config_id`` whose speed was checked; and why a long run could not be measured."""
    found: dict[str, Sustained] = {}
    missing: list[str] = []
    for long in configs:
        for run in long.runs if workload(long.cells[0].config) == "sustained" else ():
            alike = [c for c in configs if _is_checked_by(c, run.cell)]
            seconds = [r.throughput.seconds for c in alike for r in c.runs if r.throughput]
            try:
                if not seconds:
                    raise NotMeasuredError("no other cell of its configuration was timed")
                measured = measure_sustained(run.cell, run.world_size, float(np.mean(seconds)))
            except NotMeasuredError as reason:
                missing.append(f"{long.label}: {reason}")
            else:
                found |= {c.config_id: measured for c in alike}
    return found, tuple(missing)


def _is_checked_by(config: Configuration, long: CellRecords) -> bool:
    own = config.cells[0].config
    return is_timed(own) and _compared(own) == _compared(long.config)


def _compared(config: Mapping[str, Any] | None) -> dict[str, Any]:
    return {key: value for key, value in (config or {}).items() if key not in _OF_THE_CELL}


def measure_sustained(cell: CellRecords, world_size: int, early_s: float) -> Sustained:
    """The last minute of a long run, or fifth of it, against its first ``early_s`` timed seconds.

    Raises :class:`NotMeasuredError`.
    """
    ranks = common_steps(cell.steps, world_size)
    times_ms = np.stack([one.column("step") for one in ranks])
    ends_s = np.cumsum(times_ms.max(axis=0)) / 1e3
    total_s = float(ends_s[-1])
    late_from_s = total_s - min(_LATE_S, _LATE_SHARE * total_s)
    early, late = ends_s <= min(early_s, late_from_s), ends_s > late_from_s
    for name, chosen in (("first", early), ("last", late)):
        if chosen.sum() < _FEWEST_STEPS:
            raise NotMeasuredError(
                f"the {name} window of its {total_s:.3g} s has {chosen.sum()} steps; allowed: "
                f"{_FEWEST_STEPS} or more (a larger measure.sustained_s)"
            )
    return Sustained(
        cell.planned.name,
        total_s,
        _window(cell, ranks, times_ms, early),
        _window(cell, ranks, times_ms, late),
        _noise(times_ms[:, late].max(axis=0), min(early_s, late_from_s)),
    )


def _noise(times_ms: npt.NDArray[np.float64], stretch_s: float) -> float | None:
    stretch = (np.cumsum(times_ms) / 1e3 // stretch_s).astype(int)
    whole = [times_ms[stretch == k].mean() for k in range(stretch[-1]) if (stretch == k).any()]
    if len(whole) < _FEWEST_STRETCHES:
        return None
    return float(2 * np.std(whole, ddof=1) / times_ms.mean())


def _window(
    cell: CellRecords,
    ranks: Sequence[StepSeries],
    times_ms: npt.NDArray[np.float64],
    chosen: npt.NDArray[np.bool_],
) -> Window:
    rows = ranks[0].rows[chosen]
    begin, end = (
        (int(row["start_ns"]) + ranks[0].epoch_offset_ns) / 1e9 for row in (rows[0], rows[-1])
    )
    devices = {
        name: mean_of_known(
            [
                value
                for series in cell.devices
                for device in series.devices
                for at, value in zip(series.times, series.values(device.id, name), strict=True)
                if begin <= at <= end
            ]
        )
        for name in _DEVICE_FIGURES
    }
    slowest = int(times_ms[:, chosen].sum(axis=1).argmax())
    own_ms = times_ms[slowest, chosen]
    return Window(float(own_ms.sum()) / 1e3, len(own_ms), float(own_ms.mean()), devices)
