"""Step times that cannot all be true, because the same time stands in a row or a file twice.

A step begins where the one before it ended, and its phases add up to it: in every step file kept
in ``docs/results`` and ``tests/golden`` both hold to 1e-7. The device's time line is another
clock's. Rows of the two lines differ by up to 277 ms, since the host runs ahead, and a whole window
by -10.8 to +2.9 %: only the sums of windows are held against each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from scalewise.records import PHASES, StepSeries

SAME: Final = 1e-3
"""Share by which two records of one time may differ; times below 1 us do not count."""
_SAME_MS: Final = 1e-3
DEVICE_SHARE: Final = 0.15
DEVICE_S: Final = 0.5
"""A window on the device differs from the host's by less than the larger of these."""

Times = npt.NDArray[np.float64]


def contradiction(series: Sequence[StepSeries], config: Mapping[str, Any] | None) -> str | None:
    """The first contradiction in the steps of a run's ranks, in words; None for none."""
    for one in series:
        for found in _contradictions(one, config):
            return f"the step times of rank {one.rank} contradict each other: {found}"
    return None


def _contradictions(series: StepSeries, config: Mapping[str, Any] | None) -> Iterator[str]:
    rows = series.rows
    lasted = _host_step_ms(rows)[:-1]
    apart = np.diff(rows["start_ns"]) / 1e6
    tolerated = SAME * np.abs(apart) + _SAME_MS
    wrong = lasted - apart > tolerated
    if not _may_leave_out(config):
        wrong |= apart - lasted > tolerated
    if wrong.any():
        at = int(wrong.argmax())
        yield (
            f"step {rows['step'][at]:,} took {lasted[at]:.6g} ms on the host, and the next one "
            f"began {apart[at]:.6g} ms after it began"
        )
    for line in ("host", "device"):
        yield from _unequal_parts(rows, line)
    yield from _device_apart(series.timed())


def _may_leave_out(config: Mapping[str, Any] | None) -> bool:
    """Whether something may come between two steps, which belongs to none: a checkpoint, a pass
    over validation data, or what only a user's own Trainer knows."""
    if config is None or config.get("validation") not in ("never", "end"):
        return True
    checkpoint = config.get("checkpoint")
    intervals = ("every_n_steps", "every_s")
    return isinstance(checkpoint, Mapping) and any(checkpoint.get(key) for key in intervals)


def _unequal_parts(rows: npt.NDArray[np.void], line: str) -> Iterator[str]:
    """That phases do not add up to their step. A replayed step has no phases but its data's."""
    divided = ~np.isnan(rows[f"{line}_optimizer_ms"])
    whole = np.asarray(rows[f"{line}_step_ms"], dtype=np.float64)
    parts = np.nansum([np.float64(rows[f"{line}_{phase}_ms"]) for phase in PHASES], axis=0)
    wrong = divided & ~(np.abs(parts - whole) <= SAME * np.abs(whole) + _SAME_MS)
    if wrong.any():
        at = int(wrong.argmax())
        yield (
            f"step {rows['step'][at]:,} took {whole[at]:.6g} ms on the {line}, and its phases "
            f"together {parts[at]:.6g} ms"
        )


def _device_apart(timed: StepSeries) -> Iterator[str]:
    on_device = timed.column("step", "device")
    known = ~np.isnan(on_device)
    device_s, host_s = on_device[known].sum() / 1e3, _host_step_ms(timed.rows)[known].sum() / 1e3
    if abs(device_s - host_s) > max(DEVICE_SHARE * host_s, DEVICE_S):
        yield (
            f"its {int(known.sum()):,} timed steps took {device_s:.4g} s on the device and "
            f"{host_s:.4g} s on the host"
        )


def _host_step_ms(rows: npt.NDArray[np.void]) -> Times:
    return np.asarray(rows["host_step_ms"], dtype=np.float64)
