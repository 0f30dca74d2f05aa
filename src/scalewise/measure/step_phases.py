"""From the marks of steps to the milliseconds of their phases, many steps at once.

The thread that computes this shares the interpreter with the one that trains: whatever a row
costs here, a step that is bound by its host is longer by. So nothing is done once a step that can
be done once for all of them.
"""

from __future__ import annotations

import enum

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.float64]


class Mark(enum.IntEnum):
    """The moments of one batch, in order."""

    FETCH_BEGIN = 0
    FETCH_END = 1
    TRANSFER_END = 2
    FORWARD_BEGIN = 3
    FORWARD_END = 4
    BACKWARD_BEGIN = 5
    LAST_BUCKET = 6
    BACKWARD_END = 7
    OPTIMIZER_BEGIN = 8
    OPTIMIZER_END = 9
    REPLAY_BEGIN = 10
    """In place of all from ``FORWARD_BEGIN`` on but the last: the step is one launch."""


_CLOSES = {
    Mark.FETCH_BEGIN: "other",
    Mark.FETCH_END: "data_wait",
    Mark.TRANSFER_END: "h2d",
    Mark.FORWARD_END: "forward",
    Mark.LAST_BUCKET: "backward",
    Mark.BACKWARD_END: "exposed_comm",
    Mark.OPTIMIZER_END: "optimizer",
}
"""The phase of the device that ends with each mark which cuts its time line."""
DEVICE_MARKS = tuple(_CLOSES)
"""Between the others the host only does bookkeeping, which keeps no device busy, and an event
costs more than a clock reading."""


_SPANS = {
    "data_wait": (Mark.FETCH_BEGIN, Mark.FETCH_END),
    "h2d": (Mark.FETCH_END, Mark.TRANSFER_END),
    "forward": (Mark.FORWARD_BEGIN, Mark.FORWARD_END),
    "backward": (Mark.BACKWARD_BEGIN, Mark.BACKWARD_END),
    "exposed_comm": (Mark.LAST_BUCKET, Mark.BACKWARD_END),
    "optimizer": (Mark.OPTIMIZER_BEGIN, Mark.OPTIMIZER_END),
    "replay": (Mark.REPLAY_BEGIN, Mark.OPTIMIZER_END),
}
"""From which mark to which each phase lasts on the host. What is exposed lies within backward."""
_BEGINS, _ENDS = ([marks[end] for marks in _SPANS.values()] for end in (0, 1))
_FETCHING = ("data_wait", "h2d")


def host_phases_ms(
    start_ns: npt.NDArray[np.int64], marks_ns: npt.NDArray[np.int64]
) -> dict[str, Times]:
    """Phases of steps on the host's time line.

    Args:
        start_ns: when each step began, shape ``[steps]``.
        marks_ns: one ``perf_counter_ns`` reading a :class:`Mark` of each batch, 0 where the moment
            did not occur, shape ``[steps, batches, marks]``.

    Returns ms of each phase, of ``arrival`` (all gradients are ready) and of the whole ``step``,
    each of shape ``[steps]``, NaN where there is none. Phases of several batches are added. What
    no phase covers is ``other``, so that all add up to ``step``.
    """
    last = marks_ns[:, -1]
    total_ms = (last[:, Mark.OPTIMIZER_END] - start_ns) / 1e6
    reduced = last[:, Mark.LAST_BUCKET] != 0

    begins, ends = marks_ns[:, :, _BEGINS], marks_ns[:, :, _ENDS]
    both = (begins != 0) & (ends != 0)
    spans_ms = dict(zip(_SPANS, np.where(both, ends - begins, 0).sum(axis=1).T / 1e6, strict=True))
    known = dict(zip(_SPANS, both.any(axis=1).T, strict=True))
    known["exposed_comm"] &= reduced
    exposed_ms = np.where(known["exposed_comm"], spans_ms["exposed_comm"], 0.0)
    covered_ms = sum(spans_ms.values()) - spans_ms["exposed_comm"]
    # Within backward it is counted already, unless nobody marked where that began.
    covered_ms += np.where(known["backward"], 0.0, exposed_ms)
    spans_ms["backward"] = spans_ms["backward"] - exposed_ms
    # Data of a replayed step came with an earlier one of its batch: no time went into fetching any.
    for name in _FETCHING:
        known[name] |= known["replay"]
    phases = {n: np.where(known[n], ms, np.nan) for n, ms in spans_ms.items() if n != "replay"}

    ready_ns = np.where(reduced, last[:, Mark.LAST_BUCKET], last[:, Mark.BACKWARD_END])
    arrival_ms = np.where(ready_ns != 0, (ready_ns - start_ns) / 1e6, np.nan)
    return {**phases, "other": total_ms - covered_ms, "arrival": arrival_ms, "step": total_ms}


def device_phases_ms(marks_ms: Times, replayed: npt.NDArray[np.bool_]) -> dict[str, Times]:
    """Phases of steps on the device's time line.

    Args:
        marks_ms: from the start of the step until the stream reached each :class:`Mark` of each
            batch, NaN where there is no event, shape ``[steps, batches, marks]``.
        replayed: which steps were one launch, shape ``[steps]``.

    Returns the same as :func:`host_phases_ms`. Consecutive marks cut the stream, so each phase runs
    from the mark before it to its own: ``other`` until the loader is asked, ``data_wait`` until
    the batch is there, ``h2d`` until it is on the device, ``forward``, ``backward`` until the last
    bucket is ready (or its own end), ``exposed_comm`` until backward ends, ``optimizer`` until it
    has stepped. What a replayed step does after its data are there has no phases.
    """
    steps = len(marks_ms)
    cuts = marks_ms[:, :, DEVICE_MARKS]
    there = ~np.isnan(cuts)
    # Where the stream was last: a mark that is missing cuts nothing.
    reached = np.maximum.accumulate(np.where(there, cuts, 0.0).reshape(steps, -1), axis=1)
    before = np.concatenate([np.zeros((steps, 1)), reached[:, :-1]], axis=1).reshape(cuts.shape)
    lasts_ms = np.where(there, cuts - before, 0.0)
    lasting = dict(zip(_CLOSES.values(), np.moveaxis(lasts_ms, 2, 0), strict=True))
    known = dict(zip(_CLOSES.values(), np.moveaxis(there, 2, 0), strict=True))
    # Without a reduction the end of backward closes backward itself.
    unreduced = np.isnan(marks_ms[:, :, Mark.LAST_BUCKET])
    lasting["backward"] = lasting["backward"] + np.where(unreduced, lasting["exposed_comm"], 0.0)
    known["backward"] = known["backward"] | (unreduced & known["exposed_comm"])
    lasting["exposed_comm"] = np.where(unreduced, 0.0, lasting["exposed_comm"])
    known["exposed_comm"] = known["exposed_comm"] & ~unreduced
    known["optimizer"] = known["optimizer"] & ~replayed[:, None]

    phases = {
        name: np.where(known[name].any(axis=1), ms.sum(axis=1), np.nan)
        for name, ms in lasting.items()
    }
    for name in _FETCHING:
        phases[name][replayed & np.isnan(phases[name])] = 0.0
    ready_ms = np.where(
        unreduced, marks_ms[:, :, Mark.BACKWARD_END], marks_ms[:, :, Mark.LAST_BUCKET]
    )
    arrival_ms = np.fmax.reduce(ready_ms, axis=1)
    return {**phases, "arrival": arrival_ms, "step": reached[:, -1]}
