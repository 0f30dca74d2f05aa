"""Step files as ranks write them."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import numpy.typing as npt

from scalewise.analysis.steps import find_long_steps, timed_steps, without
from scalewise.records import PHASES, STEP_DTYPE, StepSeries, StepWriter

BLOCK_BYTES = 8 + STEP_DTYPE.itemsize
"""Of a block with a single row, as a test that appends them one by one leaves them."""


def append_step(
    writer: StepWriter, step: int, start_ns: int, epoch: int, samples: int, flags: int,
    host_ms: Mapping[str, float | None], device_ms: Mapping[str, float | None] | None = None,
) -> None:  # fmt: skip
    """One row in a block of its own; a time that is not given is missing."""
    row = np.zeros(1, STEP_DTYPE)
    row[["step", "start_ns", "epoch", "samples", "flags"]] = (step, start_ns, epoch, samples, flags)
    for line, times in (("host", host_ms), ("device", device_ms or {})):
        for name in (*PHASES, "step", "arrival"):
            ms = times.get(name)
            row[f"{line}_{name}_ms"] = np.nan if ms is None else ms
    writer.append_rows(row)


def write_rows(path: Path, *blocks: npt.NDArray[np.void]) -> None:
    """Rows block by block, with a clock that is Unix time."""
    with closing(StepWriter(path, epoch_offset_ns=0)) as writer:
        for rows in blocks:
            writer.append_rows(rows)


def steady_rows(steps: int, step_ms: float = 10.0, on_device: bool = True) -> npt.NDArray[np.void]:
    """Rows whose times agree: each step begins where the one before it ended."""
    rows = np.zeros(steps, STEP_DTYPE)
    rows["step"] = np.arange(steps)
    rows["start_ns"] = 10**9 + np.arange(steps) * int(step_ms * 1e6)
    rows["samples"] = 16
    for line in ("host", "device"):
        known = line == "host" or on_device
        for name in (*PHASES, "step", "arrival"):
            rows[f"{line}_{name}_ms"] = step_ms / len(PHASES) if known else np.nan
        if known:
            rows[f"{line}_step_ms"] = step_ms
    return rows


def common_steps(series: Sequence[StepSeries], world_size: int) -> tuple[StepSeries, ...]:
    """The timed steps of all ranks, aligned, but for long ones that are set aside."""
    ranks = timed_steps(series, world_size)
    return without(ranks, find_long_steps(ranks))
