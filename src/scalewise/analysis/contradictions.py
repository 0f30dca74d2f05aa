"""Step records that contradict themselves: their times cannot all be true."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from scalewise.records import PHASES, StepSeries

SAME: Final = 1e-3
"""Share by which two records of one time may differ; times below 1 us do not count."""

_SAME_MS: Final = 1e-3
DEVICE_SHARE: Final = 0.15

DEVICE_S: Final = 0.5
"""A window on the device differs from the host's by less than the larger of these."""


def contradiction(series: Sequence[StepSeries]) -> str | None:
    """The first contradiction in the steps of a run's ranks, in words; None for none.

    A step ends before the next one begins, and its phases add up to it: in every step file kept in
    ``docs/results`` and ``tests/golden`` both hold to 1e-7. The device's timeline has a clock of
    its own, so only the sums of whole windows are compared with the host's.
    """
    for one in series:
        for found in _contradictions(one):
            return f"the step times of rank {one.rank} contradict each other: {found}"
    return None


def _contradictions(series: StepSeries) -> Iterator[str]:
    rows = series.rows
    lasted_ms = rows["host_step_ms"][:-1].astype(np.float64)
    apart_ms = np.diff(rows["start_ns"]) / 1e6
    for at in np.flatnonzero(lasted_ms - apart_ms > SAME * np.abs(apart_ms) + _SAME_MS)[:1]:
        yield (
            f"step {rows['step'][at]:,} took {lasted_ms[at]:.6g} ms on the host, and the next one "
            f"began {apart_ms[at]:.6g} ms after it began"
        )
    for line in ("host", "device"):
        # A replayed step has no phases but its data's.
        divided = ~np.isnan(rows[f"{line}_optimizer_ms"])
        if not divided.any():
            continue
        whole_ms = rows[f"{line}_step_ms"].astype(np.float64)
        parts_ms = np.zeros(len(whole_ms))
        for phase in PHASES:
            own_ms = rows[f"{line}_{phase}_ms"].astype(np.float64)
            parts_ms += np.where(np.isnan(own_ms), 0.0, own_ms)
        same = np.abs(parts_ms - whole_ms) <= SAME * np.abs(whole_ms) + _SAME_MS
        for at in np.flatnonzero(divided & ~same)[:1]:
            yield (
                f"step {rows['step'][at]:,} took {whole_ms[at]:.6g} ms on the {line}, and its "
                f"phases together {parts_ms[at]:.6g} ms"
            )
    timed = series.timed()
    on_device = timed.column("step", "device")
    known = ~np.isnan(on_device)
    device_s, host_s = (
        float(times[known].sum()) / 1e3 for times in (on_device, timed.column("step", "host"))
    )
    if abs(device_s - host_s) > max(DEVICE_SHARE * host_s, DEVICE_S):
        yield (
            f"its {int(known.sum()):,} timed steps took {device_s:.4g} s on the device and "
            f"{host_s:.4g} s on the host"
        )
