"""Limits that lie in how the ranks differ: what they were fed, and who arrives late."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from scalewise.analysis.diagnosis_case import (
    SHARE,
    Case,
    Diagnosis,
    contention_ms,
    contention_ms_by_rank,
    contention_words,
    run_queue_ms,
    sm_activity,
)
from scalewise.analysis.run import Run
from scalewise.analysis.steps import common_steps, timeline
from scalewise.analysis.time_budget import HICCUP_FACTOR, hiccups_of
from scalewise.records import CommunicationRecord

STALL_SHARE = 0.05
"""Share of all time from which stalls are a limit; they are rare, so each of them is long."""

STALL_EVENTS = 3
"""So often at least: two interruptions took 5 and 7 % of healthy runs of a small model on one H200.
What they took is no limit then, but a doubt (:mod:`scalewise.analysis.time_budget`)."""

RARE = 0.2
"""Share of hiccups up to which they are exceptions; beyond, the steps are of two kinds."""


def stalls(case: Case) -> Iterator[Diagnosis]:
    found = hiccups_of(case.run)
    if found is None or found.events < STALL_EVENTS or found.count > RARE * found.steps:
        return
    cost = found.excess_ms
    # What the thread spent without a core is the crowd's doing and is named as such.
    if cost - max(run_queue_ms(case.run).values(), default=0.0) > STALL_SHARE * case.step_ms:
        yield Diagnosis(
            "stalls", cost, case.step_ms,
            f"{found.count} of {found.steps} steps, in {found.events} events, take more than "
            f"{HICCUP_FACTOR:g} medians ({found.median_ms:.3g} ms), the longest "
            f"{found.longest_ms:.3g} ms",
            "without periodic work (checkpoints, validation, logging, garbage collection) the 99th "
            "percentile comes down to the median",
        )  # fmt: skip


def input_bound(case: Case) -> Iterator[Diagnosis]:
    # Where there is a GPU, only what its stream waits for costs anything: a loader that is slow
    # while earlier steps still compute is hidden.
    wait, step = case.phases.phases_ms["data_wait"], case.phases.step_ms
    if wait is None or not step:
        return
    # A thread that waits for its loader has to be given a core again when the batch is there: all
    # of the crowd's delay may lie in the wait. It is named as the crowd's, and not twice.
    crowd = 0.0 if case.device else contention_ms(case.run)
    if wait - crowd > SHARE * step:
        who = "the GPU's stream" if case.device else "the training process"
        less = contention_words(crowd, case.step_ms)
        yield Diagnosis(
            "input-bound", wait - crowd, case.step_ms,
            f"{who} waits {wait:.3g} ms a step for its loader{less}",
            "with the batches held in memory (or more loader workers) the step gets shorter by it",
        )  # fmt: skip


def oversubscribed(case: Case) -> Iterator[Diagnosis]:
    delays = contention_ms_by_rank(case.run)
    if not delays:
        return
    # The ranks wait for one another: a core that one rank lacks delays all of them.
    worst = max(delays, key=lambda r: delays[r])
    cost = min(delays[worst], _hidden_from(case))
    if cost > SHARE * case.step_ms:
        each = ", ".join(f"rank {r}: {ms:.3g}" for r, ms in delays.items())
        yield Diagnosis(
            "host oversubscribed", cost, case.step_ms,
            "the training thread was ready to run while other processes held its cores for "
            f"{each} ms a step",
            "with the other processes of the host stopped, or other cores, the step is shorter "
            "by about this much",
        )  # fmt: skip


def _hidden_from(case: Case) -> float:
    """The most that a delay of the host can have cost: the time in which the GPU had no work."""
    activity = sm_activity(case)
    if case.device is None or activity is None:
        return case.step_ms
    return max(0.0, case.step_ms - activity.compute_ms * activity.busy_percent / 100)


UNEVEN_SHARE = 0.05
"""Excess of samples from which shards are uneven: an epoch's last batch makes less of it."""

CAUGHT_UP = 0.25
"""Share of the host's fetch time that the GPU's marks are apart from which it had caught up: with
work queued they are 0.01 ms apart, else as far as on the host."""


def sharding(case: Case) -> Iterator[Diagnosis]:
    audit, n = case.run.shards, case.run.world_size
    if audit and audit.verdict in ("every rank sees all data", "overlap"):
        yield Diagnosis(
            "not sharded", case.step_ms * (1 - 1 / n), case.step_ms, audit.explanation,
            "with a distributed sampler the shard audit reports disjoint shards and an epoch "
            f"takes 1/{n} of the steps",
            invalidates=True,
        )  # fmt: skip


def uneven_shards(case: Case) -> Iterator[Diagnosis]:
    fed = _fed(case.run)
    excess, rank = _excess(fed)
    compute, balance = case.compute_ms, case.run.balance
    if balance is not None and balance.behind_ms < SHARE * case.step_ms:
        return  # shares as large as the devices are fast (strategy=heterogeneous) delay nobody
    if excess > UNEVEN_SHARE and compute is not None:
        each = ", ".join(f"rank {r}: {n:,}" for r, n in fed.items())
        yield Diagnosis(
            "uneven shards", compute * excess, case.step_ms,
            f"samples fed in the same steps differ ({each})",
            "with equal batches on all ranks their arrivals agree", rank,
        )  # fmt: skip


def _fed(run: Run) -> dict[int, int]:
    """Samples each rank fed in the timed steps; empty unless all made the same steps."""
    timed = [s.timed() for s in run.cell.steps]
    if len({len(s) for s in timed}) != 1:
        return {}
    return {s.rank: int(s.rows["samples"].sum()) for s in timed}


def _excess(fed: Mapping[int, int]) -> tuple[float, int | None]:
    """By how much the rank with most samples exceeds the mean of all, and which it is."""
    if len(fed) < 2 or not any(fed.values()):
        return 0.0, None
    most = max(fed, key=lambda r: fed[r])
    return fed[most] * len(fed) / sum(fed.values()) - 1, most


def straggler(case: Case) -> Iterator[Diagnosis]:
    balance = case.run.balance
    if balance is None or balance.behind_ms < SHARE * case.step_ms:
        return
    rank = balance.slowest_rank
    if balance.behind_ms <= 2 * _delay_of_samples(case, rank):
        return  # it has more to do, and is not slow for it
    if _others_lead(case, rank):
        return  # its host launches as fast as the others', only not as far ahead
    if balance.behind_ms - _more_contention_ms(case, rank) < SHARE * case.step_ms:
        return  # it had no core for as long: its host is crowded, and that is named as such
    steps, late_ms = _lateness(case.run, rank)
    # A slow rank is late most of the time, or was so at the end: a few long steps are stalls.
    most, lately = np.median(late_ms), np.median(late_ms[-max(1, len(late_ms) // 4) :])
    if float(max(most, lately)) < SHARE * case.step_ms:
        return
    devices = [d for d in case.usage() if d.device.rank == rank]
    where = f" on {devices[0].label}" if devices and devices[0].device.id[:4] != "rank" else ""
    yield Diagnosis(
        "straggler",
        balance.behind_ms,
        case.step_ms,
        f"rank {rank}{where} is ready {balance.behind_ms:.3g} ms after the others (arrival CV "
        f"{balance.cv_percent:.1f} %), {_since(steps, late_ms)}{_cause(case, rank)}",
        "give the rank's device to another rank: if the delay stays with the device it is the "
        "device, if it stays with the rank it is the data or the code",
        rank,
    )


def _delay_of_samples(case: Case, rank: int) -> float:
    """Ms by which ``rank`` is expected behind the others for feeding more samples than they."""
    excess, heavy = _excess(_fed(case.run))
    n = case.run.world_size
    if heavy != rank or excess <= UNEVEN_SHARE or case.compute_ms is None:
        return 0.0
    # It has 1 + excess of a fair share, and each of the others 1 - excess / (n - 1).
    return case.compute_ms * excess * n / (n - 1)


def _others_lead(case: Case, rank: int) -> bool:
    """Whether ``rank`` may be behind only because the others' hosts have run ahead.

    Where its host is the pace of a rank, its GPU waits for each kernel, while the GPU of a host
    that happens to lead finds work queued and is ready at once. Nothing holds a lead back and
    nothing wins a lost one again: being behind says nothing about the rank, unless its host spends
    longer than the others' where it launches nothing (loader, callbacks). So in all six runs of two
    small models on two H200s.
    """
    if case.device is None or case.run.anatomy is None:
        return False
    hosts = {r.rank: r for r in case.run.anatomy.ranks if r.timeline == "host"}
    away = {r: sum(a.phases_ms[p] or 0.0 for p in ("data_wait", "other")) for r, a in hosts.items()}
    others = [ms for other, ms in away.items() if other != rank]
    if away[rank] - sum(others) / len(others) >= SHARE * case.step_ms:
        return False
    # Where every GPU has caught up with its host, none of the hosts is ahead.
    return _caught_up(case, rank) and not all(_caught_up(case, other) for other in hosts)


def _caught_up(case: Case, rank: int) -> bool:
    """Whether the GPU of ``rank`` mostly has no work queued when its host fetches a batch.

    The host marks the begin and the end of fetching in the stream. A GPU with work queued passes
    both marks at once; one that has caught up with its host passes them as late as the host does.
    """
    series = next((s.timed() for s in case.run.cell.steps if s.rank == rank), None)
    if series is None or not len(series):
        return False
    device, host = (np.nanmedian(series.column("data_wait", t)) for t in ("device", "host"))
    return bool(device > CAUGHT_UP * host)


def _more_contention_ms(case: Case, rank: int) -> float:
    """Ms a step that ``rank`` was without a core beyond the mean of the others."""
    delays = run_queue_ms(case.run)
    others = [ms for other, ms in delays.items() if other != rank]
    if rank not in delays or not others:
        return 0.0
    return max(0.0, delays[rank] - sum(others) / len(others))


def _lateness(run: Run, rank: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Step numbers, and ms by which ``rank`` arrives after the mean of the others in each."""
    ranks = common_steps(run.cell.steps, run.world_size)
    arrivals = np.stack([s.column("arrival", timeline(ranks)) for s in ranks])
    timed = ~np.isnan(arrivals).any(axis=0)
    late = arrivals[rank] - np.delete(arrivals, rank, axis=0).mean(axis=0)
    return np.asarray(ranks[0].rows["step"][timed], dtype=np.int64), late[timed]


def _since(steps: npt.NDArray[np.int64], late_ms: npt.NDArray[np.float64]) -> str:
    """From which step on the rank is late: the first ten-step window as late as the last."""
    final = float(np.median(late_ms[-10:]))
    for i in range(0, len(late_ms), 10):
        if final > 0 and float(np.median(late_ms[i : i + 10])) > final / 2:
            return "from the first timed step" if i == 0 else f"since about step {steps[i]}"
    return "now and then"


def _cause(case: Case, rank: int) -> str:
    """The host phase in which the rank is slower than the others, if one stands out."""
    assert case.run.anatomy is not None
    line = "device" if case.device else "host"
    ranks = [r for r in case.run.anatomy.ranks if r.timeline == line]
    excess = {}
    for phase in ("data_wait", "h2d", "forward", "backward", "other"):
        mine = [r.phases_ms[phase] for r in ranks if r.rank == rank]
        rest = [v for r in ranks if r.rank != rank and (v := r.phases_ms[phase]) is not None]
        if mine and mine[0] is not None and rest:
            excess[phase] = mine[0] - sum(rest) / len(rest)
    if not excess:
        return ""
    phase = max(excess, key=lambda p: excess[p])
    return f", most of it in {phase.replace('_', ' ')} (+{excess[phase]:.3g} ms)"


_MORE_THAN_ONCE = 1.05
"""Reductions a step from which some are redundant; an epoch's last, shorter step may add one."""


def redundant_reductions(case: Case) -> Iterator[Diagnosis]:
    """Gradients reduced after every batch although an optimizer steps after several of them."""
    sent = _communication(case)
    if sent is None or sent.what != "gradients" or sent.rounds_per_step < _MORE_THAN_ONCE:
        return
    n = sent.rounds_per_step
    exposed = case.phases.phases_ms["exposed_comm"]
    cost = None if exposed is None else exposed * (1 - 1 / n)
    costs = "at a cost that was not timed" if cost is None else f"costs {cost:.3g} ms"
    yield Diagnosis(
        "redundant reductions", cost or 0.0, case.step_ms,
        f"gradients reduced {n:g} times per optimizer step; {n - 1:g} unnecessary, {costs} "
        f"({(n - 1) / n:.0%} of {sent.payload_bytes_per_step / 2**20:.3g} MiB a rank)",
        "reduced in a step's last batch only (strategy.no_sync=true, or DDP's no_sync() around "
        "the others) the loss is the same and one reduction a step is counted",
    )  # fmt: skip


def parameter_averaging(case: Case) -> Iterator[Diagnosis]:
    """Local SGD that spends its time on averaging."""
    sent = _communication(case)
    if sent is None or sent.what != "parameters" or sent.ms_per_step is None:
        return
    if sent.ms_per_step > SHARE * case.step_ms:
        yield Diagnosis(
            "communication-bound", sent.ms_per_step, case.step_ms,
            f"averaging the parameters every {1 / sent.rounds_per_step:.3g} steps takes "
            f"{sent.ms_per_step:.3g} ms a step on average",
            "with twice the period (strategy.period) this time halves",
        )  # fmt: skip


def _communication(case: Case) -> CommunicationRecord | None:
    """What the rank that reduced most has counted."""
    result = case.run.cell.result
    counted = [r.communication for r in result.ranks if r.communication] if result else []
    return max(counted, key=lambda c: c.rounds_per_step, default=None)
