"""How the ranks of a script ended, in one line: it knows nothing of our records."""

from __future__ import annotations

import re
from dataclasses import replace

from scalewise.records import (
    CellFolder,
    Ending,
    SweepFolder,
    line_that_raised,
    load_or_none,
    read_heartbeat,
)
from scalewise.supervisor.failures import last_lines
from scalewise.supervisor.job import Job
from scalewise.supervisor.ranks import Ranks

_TORCHRUN = re.compile(r"\b(LOCAL_RANK|RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT)\b")
"""Variables that torchrun sets, in the last words of a script that wants them."""

_RANK = re.compile(r"^\[rank\d+\]: ?")
"""What torch puts before each line of a traceback once ranks have met."""

_ERROR = re.compile(r"[\w.]*(Error|Exception|Interrupt)\b")

_OURS = "scalewise.config.errors.ConfigError: "
"""Before what a script asked of us that we refuse."""

_QUOTED = 100
"""Characters of the last line of stdout."""


def name_script_end(ending: Ending, job: Job, folder: CellFolder, ranks: Ranks) -> Ending:
    """``ending`` in words for whoever wrote the script.

    A rank that ended by itself says so in its last line of stderr, as Python and argparse do. One
    that trained nothing, or left no summary, is named although its exit status is 0. What comes
    back in another try is wrong input.
    """
    summaries = {p.rank: load_or_none(folder.load_rank, p.rank) for p in ranks.processes}
    unrecorded = [rank for rank, summary in summaries.items() if summary is None]
    # Also of a rank whose script started another process that trained.
    wrong = [rank for rank in summaries if load_or_none(folder.load_rank_error, rank)] or unrecorded
    if ending.outcome == "done" and wrong:
        return _unrecorded(wrong[0], folder)
    gone = next((one for one in summaries.values() if one is not None), None)
    if ending.cause in ("peer", "hang") and gone is not None and ending.rank in unrecorded:
        words = (
            f"rank {gone.rank} ended by itself after {gone.steps_completed:,} steps, and rank "
            f"{ending.rank} went on; allowed: ranks that take equally many"
        )
        return replace(ending, cause="config", message=words)
    if ending.cause not in ("exit", "exception", "peer") or ending.rank is None:
        return ending
    began = read_heartbeat(folder.heartbeat_path(ending.rank)) is not None
    lines = [_RANK.sub("", line) for line in last_lines(folder, ending.rank) if line.strip()]
    if ending.cause == "exit" and ending.exit_code:
        # What an error says may take several lines, of which the first names it.
        said = next(filter(_ERROR.match, reversed(lines)), lines[-1] if lines else "")
        if said.startswith(_OURS):
            return replace(ending, message=said.removeprefix(_OURS), cause="config")
        said = f": {said}" if said else _last_words(folder, ending.rank) or " and said nothing"
        words = f"rank {ending.rank} exited with status {ending.exit_code}{said}"
        # Without a traceback it left on purpose, as argparse does, and will again.
        raised = line_that_raised("\n".join(lines)) is not None
        ending = replace(ending, message=words, cause="exit" if raised else "config")
    alone = job.world_size == 1 and not ranks.as_torchrun
    asks = alone and not began and any(map(_TORCHRUN.search, lines))
    return replace(ending, cause="launcher") if asks else ending


def _unrecorded(rank: int, folder: CellFolder) -> Ending:
    error = load_or_none(folder.load_rank_error, rank)
    if error is not None:  # the script went on without the process that trains
        return replace(error, message=f"rank {rank}: {error.message}", exit_code=0)
    beat = read_heartbeat(folder.heartbeat_path(rank))
    others = SweepFolder(folder.path.parent).cells()
    if beat is None and any(cell.is_done(one.cell_id) for one, cell in others):
        message = (
            f"rank {rank} ended with status 0 and trained nothing, though an earlier run did: it "
            "may go on from what that left; allowed: {run} in an argument, the name of each run"
        )
    elif beat is None:
        message = (
            f"rank {rank} ended with status 0 and no optimizer of torch.optim was stepped"
            f"{_last_words(folder, rank)}; allowed: a script that trains with one (python -I or "
            "-E, or an optimizer of its own, hide it)"
        )
    else:
        message = (
            f"rank {rank} left by os._exit after {beat.step} steps or more, before its records "
            "were whole; allowed: a script that returns"
        )
    return Ending("failed", "config", message, rank, 0)


def _last_words(folder: CellFolder, rank: int) -> str:
    """What a rank wrote to standard output last, quoted."""
    said = [line for line in last_lines(folder, rank, "out") if line.strip()]
    return f": {said[-1][:_QUOTED]!r}" if said else ""


def asked_for_torchrun(folder: CellFolder) -> bool:
    """Whether an earlier try of this sweep has shown that its script needs torchrun's variables.

    The first cell on one device that has ended tells: each start asks, of however many cells.
    """
    for planned, cell in SweepFolder(folder.path.parent).cells():
        if planned.devices == 1:
            if any(one.cause == "launcher" for one in cell.attempts()):
                return True
            if cell.is_done(planned.cell_id):
                return False
    return False
