"""Why a cell failed: which rank was first, of what, and whether another try can mend it."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from scalewise.config import shortened
from scalewise.host import memory_limit_mib
from scalewise.records import (
    Cause,
    CellFolder,
    Ending,
    PlannedCell,
    RankSummary,
    SweepFolder,
    line_that_raised,
    load_or_none,
    open_plain,
    read_heartbeat,
    words_beside,
)
from scalewise.supervisor.job import Job
from scalewise.supervisor.ranks import RankProcess, Ranks

_SETTLE_S = 0.3
_LAST_LINES = 20
_LINE_LIMIT = 500
_IN_A_STEP = "loops/optimization/"
"""In the traceback of a rank that trained: Lightning validates and ends a fit elsewhere."""


def first_failure(ranks: Ranks, folder: CellFolder) -> Ending:
    """The rank that failed first. Waits a moment for the others to say what they know.

    When one rank of a group dies, the others fail within milliseconds because a peer is gone, and
    may say so before its own end is seen. The culprit is a rank that a signal ended, if there is
    one: peers that are gone raise errors, but kill nobody. Else it is the earliest that names no
    lost peer, by the time its error surfaced or its end was seen.
    """
    time.sleep(_SETTLE_S)
    ranks.collect()
    # A record that the fault itself has torn says nothing: the exit status and the log still speak.
    errors = {p.rank: load_or_none(folder.load_rank_error, p.rank) for p in ranks.processes}
    summaries = {p.rank: load_or_none(folder.load_rank, p.rank) for p in ranks.processes}
    candidates: list[tuple[bool, bool, float, RankProcess]] = []
    for process in ranks.processes:
        error, code = errors[process.rank], process.exit_code or 0
        at = process.ended_at if error is None else error.finished_at
        # Status 0 alone may be somebody's early os._exit(0).
        if at is None or (error is None and code == 0 and summaries[process.rank] is not None):
            continue
        # SIGABRT is a library giving up, on a peer perhaps: pages of frames follow its reason.
        gave_up, log = -code == signal.SIGABRT, _tail(folder.log_path(process.rank, "err"))
        at_end = log.rfind("terminate called") if gave_up else -1
        said = log[at_end:] if at_end >= 0 else "\n".join(log.splitlines()[-_LAST_LINES:])
        was_spared = error is not None or code >= 0 or gave_up
        misses_peer = outside_cause(said if error is None else error.message) == "peer"
        candidates.append((was_spared, misses_peer, at, process))
    *_, at, first = min(candidates, key=lambda candidate: candidate[:3])
    error = errors[first.rank]
    if error is None:
        return replace(_silent_end(first), finished_at=at)
    error = replace(error, rank=first.rank, exit_code=first.exit_code)
    uneven = _uneven_epochs(first.rank, error, ranks, summaries, folder)
    if uneven:
        return replace(error, cause="uneven_epochs", message=uneven)
    cause = error.cause
    if cause == "exception":
        cause = outside_cause("\n".join((error.message, *last_lines(folder, first.rank)))) or cause
    return replace(error, cause=cause, message=f"rank {first.rank}: {error.message}")


def _uneven_epochs(
    rank: int,
    error: Ending,
    ranks: Ranks,
    summaries: Mapping[int, RankSummary | None],
    folder: CellFolder,
) -> str:
    """That a rank missed a peer in a step which that peer did not have; empty for any other end."""
    beat = load_or_none(read_heartbeat, folder.heartbeat_path(rank))
    in_a_step = any(_IN_A_STEP in line for line in error.last_lines)
    if beat is None or not in_a_step or outside_cause(error.message) != "peer":
        return ""
    for process in ranks.processes:
        # A rank whose fit ended as it should may still be closing.
        summary = summaries[process.rank] if process.exit_code in (None, 0) else None
        if summary is not None and summary.steps_completed <= beat.step:
            return (
                f"rank {process.rank} had ended its epoch after {summary.steps_completed:,} steps "
                f"while rank {rank} went on: epochs differ in length; "
                "give every rank as many batches"
            )
    return ""


def _silent_end(process: RankProcess) -> Ending:
    """The end of a rank that could say nothing."""
    rank, code = process.rank, process.exit_code
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        hint = " (the kernel's out-of-memory killer uses it: see dmesg)" if code == -9 else ""
        return Ending("failed", "signal", f"rank {rank} was ended by {name}{hint}", rank, code)
    early = " before it had finished" if code == 0 else ""
    message = f"rank {rank} exited with status {code}{early}; see logs/"
    return Ending("failed", "exit", message, rank, code)


def last_lines(
    folder: CellFolder, rank: int | None, stream: Literal["out", "err"] = "err"
) -> tuple[str, ...]:
    """The end of what a rank wrote to ``stream``; rank 0 where none is to blame."""
    return log_end(folder.log_path(rank or 0, stream))


def log_end(path: Path) -> tuple[str, ...]:
    """The last lines of a file; none where it cannot be read.

    Of the stacks that faulthandler writes, innermost frames first, those of the thread in question.
    """
    text = _tail(path)
    dump, lines = text.rfind("Current thread 0x"), text.splitlines()[-_LAST_LINES:]
    if dump < text.rfind("Fatal Python error"):  # in a thread that runs no Python: the main is last
        dump = text.rfind("Thread 0x")
    # After an error at the end of Python, no frame is left.
    if dump > text.rfind("Traceback (most") and 'File "' in text[dump:]:
        lines = text[dump:].splitlines()[:_LAST_LINES]
    return tuple(line[:_LINE_LIMIT] for line in lines)


_OTHERS_GIVE_UP_S = 3.0
"""Ranks that wait for the same one began to, and so give up, about as long after each other."""
_TAIL_BYTES = 200_000
"""NCCL prints pages of frames after the line that tells."""

_GAVE_UP = re.compile(
    r"Timed out waiting \d+ ?ms"  # gloo
    r"|Watchdog caught collective operation timeout"  # NCCL
    r"|wait timeout after \d+ ?ms"  # the store at which ranks meet
    r"|Timed out after \d+ seconds waiting for clients",
    re.IGNORECASE,
)


def name_absent(
    ending: Ending, ranks: Ranks, folder: CellFolder, limit_s: float, world_size: int
) -> Ending:
    """The same, unless its rank gave up waiting in a collective: then a hang of whom it waited for.

    A time-out names only who waited. The one to blame says nothing: it sleeps, computes, or lives
    on a host whose cable is cut. Waits a moment for the other ranks to give up too: those that
    neither do nor fail are absent. ``ranks`` are those of this host, ``world_size`` of all.
    """
    if ending.rank is None or not any(
        _GAVE_UP.search(text)
        for text in (ending.message, _tail(folder.log_path(ending.rank, "err")))
    ):
        return ending
    deadline = time.monotonic() + _OTHERS_GIVE_UP_S
    while time.monotonic() < deadline and ranks.alive:
        time.sleep(0.1)
        ranks.collect()
    absent = [process.rank for process in ranks.alive]
    whom = _whom(absent, [process.rank for process in ranks.processes], world_size)
    message = (
        f"rank {ending.rank} waited {limit_s:g} s (sweep.collective_timeout_s) in a collective "
        f"for {whom}; logs/ have the stacks"
    )
    return replace(ending, cause="hang", message=message, rank=absent[0] if absent else ending.rank)


def _whom(absent: Sequence[int], here: Sequence[int], world_size: int) -> str:
    if absent:
        return f"rank {', '.join(map(str, absent))}, which did not enter it"
    if len(here) < world_size:
        elsewhere = [str(rank) for rank in range(world_size) if rank not in here]
        return f"ranks of other hosts ({', '.join(elsewhere)}), which did not answer"
    return "others that were in another one: the ranks do not make the same calls"


def _tail(path: Path) -> str:
    try:
        with open_plain(path) as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def name_memory_kill(ending: Ending, before: int | None, now: int | None) -> Ending:
    """``ending``, with the cause ``oom`` where the kernel killed for memory meanwhile.

    ``before`` and ``now`` are :func:`~scalewise.host.oom_kills`, when the cell began and has ended:
    other senders of SIGKILL count none.
    """
    killed = ending.cause == "signal" and ending.exit_code == -signal.SIGKILL
    if not killed or now is None or before is None or now <= before:
        return ending
    limit_mib = memory_limit_mib()
    limit = "" if limit_mib is None else f" (cgroup limit {limit_mib:.0f} MiB)"
    message = f"rank {ending.rank} was ended by the kernel's out-of-memory killer{limit}"
    return replace(ending, cause="oom", message=message)


_FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGPWR})
"""Others, SIGSEGV and SIGABRT among them, are faults of the program: they come back."""
_PASSING = words_beside(__file__, dict[Cause, Any], "passing.toml")
"""Faults that another try may mend, by cause."""


def outside_cause(text: str) -> Cause | None:
    """The passing fault that an error message names; None for any other."""
    for cause, fault in _PASSING.items():
        if any(re.search(words, text, re.IGNORECASE) for words in fault["says"]):
            return cause
    return None


def mendable(ending: Ending) -> str | None:
    """Why another try may end better; None if it would end the same way.

    A fault is mended if it came from outside and may be gone: a signal, a lost host, a port that
    somebody else took, a device that was busy or broke. An error of the user's own, too little
    memory, a full disk, a time limit, a hang or epochs that differ in length come back.
    """
    if ending.outcome != "failed" or ending.cause is None:
        return None
    if ending.cause == "signal":
        code = ending.exit_code
        return "ended from outside" if code is not None and -code in _FROM_OUTSIDE else None
    return _PASSING[ending.cause]["why"] if ending.cause in _PASSING else None


# How the ranks of a script ended, which knows nothing of our records.

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
        # What an error says may take several lines, of which the first names it. Lines of torch's
        # log, which begin with a bracket, may follow.
        at = max((k for k, line in enumerate(lines) if _ERROR.match(line)), default=-1)
        said = shortened("\n".join(lines[at:]).partition("\n[")[0])
        if said.startswith(_OURS):
            return replace(ending, message=said.removeprefix(_OURS), cause="config")
        said = f": {said}" if said else _last_words(folder, ending.rank) or " and said nothing"
        words = f"rank {ending.rank} exited with status {ending.exit_code}{said}"
        # Without a traceback it left on purpose, as argparse does, and will again.
        raised = line_that_raised("\n".join(lines)) is not None
        ending = replace(ending, message=words, cause="exit" if raised else "config")
    alone = job.world_size == 1 and not ranks.as_torchrun
    # An error that quotes what was typed asks for nothing.
    typed = [word for word in job.settings.script if _TORCHRUN.search(word)]
    own = [line for line in lines if not any(word in line for word in typed)]
    asks = alone and not began and any(map(_TORCHRUN.search, own))
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
            f"{_last_words(folder, rank)}; allowed: a script that trains with one, and has "
            "steps left (python -I or -E, or an optimizer of its own, hide it)"
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


def asked_for_torchrun(folder: CellFolder, own: PlannedCell) -> bool:
    """Whether an earlier try of this sweep has shown that the script needs torchrun's variables.

    The first cell of the same script on one device that has ended tells: each start asks, of
    however many cells.
    """
    for planned, cell in SweepFolder(folder.path.parent).cells():
        if planned.devices == 1 and _script_words(planned) == _script_words(own):
            if any(one.cause == "launcher" for one in cell.attempts()):
                return True
            if cell.is_done(planned.cell_id):
                return False
    return False


def _script_words(planned: PlannedCell) -> set[str]:
    """What was typed that names the script: a supervisor reads no configuration.

    What follows its file are its arguments, which change nothing in how it is started.
    """
    keys = ("script.", "experiment=")
    typed = (one for one in planned.overrides if one.lstrip("+").startswith(keys))
    return {one.partition(".py")[0] for one in typed}
