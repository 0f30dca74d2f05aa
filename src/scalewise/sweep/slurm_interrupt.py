"""How the jobs of an interrupted sweep end: cancelled, waited for, and each with its outcome."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from scalewise.sweep.job import Outcome
from scalewise.sweep.slurm_queue import JobState, QueueUnreachable, cancel, states
from scalewise.sweep.slurm_record import Sent

_ASK_EVERY_S = 0.5


def interrupt(
    jobs: Sequence[Sent], deadline: float, note: Callable[[str], None]
) -> dict[str, Outcome]:
    """Cancel every job; returns how each cell ended, by its id.

    Args:
        jobs: all that were sent and not ended yet.
        deadline: until when their supervisors have time to record it, by ``time.monotonic``.
        note: told which jobs may go on, where SLURM does not answer.
    """
    cancelled = _cancel_all(jobs, deadline, note)
    return {sent.cell.planned.cell_id: _outcome(sent, cancelled) for sent in jobs}


def _outcome(sent: Sent, cancelled: bool) -> Outcome:
    if sent.folder.result_of(sent.cell.planned.cell_id) is not None:
        return Outcome("done")
    if cancelled:
        sent.record_end()
    return Outcome("interrupted")


def _cancel_all(jobs: Sequence[Sent], deadline: float, note: Callable[[str], None]) -> bool:
    """Whether SLURM took the order; a job may need longer than ``deadline`` to follow it."""
    ids = [sent.submission.job_id for sent in jobs]
    try:
        cancel(ids)
        while time.monotonic() < deadline:
            answer = states(ids)
            for sent in jobs:
                state = answer[sent.submission.job_id]
                sent.state = state if state.ended else JobState("CANCELLED")
            if all(state.ended for state in answer.values()):
                break
            time.sleep(_ASK_EVERY_S)
    except QueueUnreachable as error:
        note(f"the jobs may go on, SLURM does not answer ({error}): scancel {' '.join(ids)}")
        return False
    return True
