"""What disturbed a run from outside its training: processes, contexts and stalls of all ranks.

A rank whose thread forgets to choose its GPU opens a second context on the first one, and the
driver stops every rank meanwhile. Means hide that; the driver's process list and the step times
over wall time show it. A finding never makes a run invalid.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

from scalewise.analysis.figures import listed
from scalewise.analysis.model import CellRecords, is_profiled
from scalewise.analysis.step_figures import StepFigures, figures_of
from scalewise.analysis.steps import NotMeasuredError
from scalewise.host import CoreUse, plural
from scalewise.records import DeviceSeries, RankSummary

DisturbanceCode = Literal[
    "rank_on_other_gpu", "foreign_process", "extra_memory_on_gpu0",  # of devices
    "common_stall",
]  # fmt: skip
CODES: Final[tuple[DisturbanceCode, ...]] = get_args(DisturbanceCode)
DEVICE_CODES: Final = CODES[:3]

EXTRA_MEMORY_MIB: Final = 200.0
"""A CUDA context takes 520 MiB on an H200; replicas differ by less than 10 beyond their
allocators."""

_SAMPLES = 2
"""A process that is just ending is seen once."""


@dataclass(frozen=True)
class Disturbance:
    """What was found in one cell, or why that cannot be told; nothing stands for a clear cell."""

    code: DisturbanceCode
    status: Literal["found", "cannot be told"]
    cell: str
    """The cell's name."""
    detail: str
    figures: Mapping[str, Any] = field(default_factory=dict)
    """The numbers behind the text, by name and unit."""


def disturbances(cell: CellRecords) -> tuple[Disturbance, ...]:
    """Findings about a finished cell that trained; none for other cells."""
    if cell.result is None or not cell.steps:
        return ()
    found = [*_device_findings(cell), *_stall_findings(cell)]
    return tuple(sorted(found, key=lambda one: CODES.index(one.code)))


@dataclass(frozen=True)
class _Sight:
    """A process that the driver listed on a GPU."""

    gpu: str
    pid: int
    times: tuple[float, ...]
    memory_mib: float | None

    @property
    def figures(self) -> dict[str, Any]:
        return {"memory_mib": self.memory_mib, "samples": len(self.times)}


def _device_findings(cell: CellRecords) -> Iterator[Disturbance]:
    assert cell.result is not None
    ranks = [rank for rank in cell.result.ranks if rank.device.kind == "cuda"]
    if not ranks:
        return
    training = _training(figures_of(cell))
    found: list[Disturbance] = []
    seen: set[int] = set()
    for series in cell.devices:
        sampled = {device.id for device in series.devices}
        here = [rank for rank in ranks if rank.device.uuid in sampled]
        if series.source == "nvml" and here:
            seen |= {rank.rank for rank in here}
            found += _host_findings(cell.planned.name, series, here, training)
    unseen = [rank.rank for rank in ranks if rank.rank not in seen]
    if unseen:
        reason = f"the GPU of {_ranks(unseen)} was not sampled"
        codes = DEVICE_CODES if len(ranks) > 1 else DEVICE_CODES[1:2]
        found += [_untold(code, cell.planned.name, reason) for code in codes]
    for code in DEVICE_CODES:
        # One line a cell: what was found on one host outranks what another host cannot tell.
        of_code = [one for one in found if one.code == code]
        positive = [one for one in of_code if one.status == "found"]
        yield from positive or of_code[:1]


def _host_findings(
    name: str, series: DeviceSeries, ranks: Sequence[RankSummary], training: tuple[float, float]
) -> Iterator[Disturbance]:
    """Findings about the GPUs of one host and the ``ranks`` that ran on it."""
    sights = _sights(series)
    seen = {(sight.gpu, sight.pid) for sight in sights}
    lost = [rank for rank in ranks if (rank.device.uuid, rank.pid) not in seen]
    unknown = _why_unknown(series, lost[0]) if lost else ""
    gpus = dict.fromkeys(rank.device.uuid for rank in ranks)
    elsewhere = [
        (rank, sight)
        for rank in ranks
        if rank not in lost
        for sight in sights
        if sight.pid == rank.pid and sight.gpu != rank.device.uuid and sight.gpu in gpus
    ]
    if elsewhere:
        yield _rank_on_other_gpu(name, series, elsewhere)
    elif len(gpus) > 1:
        blind = unknown or _unread_while_training(series, gpus, training)
        if blind:
            yield _untold("rank_on_other_gpu", name, blind)
    pids = {rank.pid for rank in ranks}
    strangers = [
        sight
        for sight in sights
        if sight.gpu in gpus
        and sight.pid not in pids
        and sum(training[0] <= when <= training[1] for when in sight.times) >= _SAMPLES
    ]
    if unknown:
        yield _untold("foreign_process", name, unknown)
    elif strangers:
        yield _foreign_process(name, series, strangers)
    if len(gpus) > 1:
        shared = bool(strangers) and not unknown
        yield from _memory_finding(name, series, ranks, training, shared=shared)


def _sights(series: DeviceSeries) -> list[_Sight]:
    seen: dict[tuple[str, int], list[tuple[float, float | None]]] = {}
    for when, row in zip(series.times, series.samples, strict=True):
        for gpu, sample in row.items():
            for process in sample.processes or ():
                seen.setdefault((gpu, process.pid), []).append((when, process.memory_mib))
    return [
        _Sight(
            gpu,
            pid,
            tuple(when for when, _ in found),
            max((mib for _, mib in found if mib is not None), default=None),
        )
        for (gpu, pid), found in seen.items()
    ]


def _why_unknown(series: DeviceSeries, rank: RankSummary) -> str:
    """Why the driver's list does not hold a rank on its own GPU."""
    uuid = rank.device.uuid or ""
    reason = series.unavailable.get("processes")
    lists = [row[uuid].processes for row in series.samples if uuid in row]
    told = [one for one in lists if one is not None]
    if not told:
        return f"the driver lists no processes{f': {reason}' if reason else ''}"
    if not any(told):
        return "the driver listed no process on a rank's own GPU"
    return "the driver lists only other pids on a rank's own GPU (a container, MPS)"


def _unread_while_training(
    series: DeviceSeries, gpus: Mapping[str | None, None], training: tuple[float, float]
) -> str:
    """Why no list tells whether a rank came to another GPU; empty if lists do."""
    read = {
        gpu
        for when, row in zip(series.times, series.samples, strict=True)
        if training[0] <= when <= training[1]
        for gpu, sample in row.items()
        if sample.processes is not None
    }
    unread = len([gpu for gpu in gpus if gpu not in read])
    if not unread:
        return ""
    return f"of {unread} {plural(unread, 'GPU')} no process list was read after the first step"


def _rank_on_other_gpu(
    name: str, series: DeviceSeries, elsewhere: Sequence[tuple[RankSummary, _Sight]]
) -> Disturbance:
    index = {device.id: device.index for device in series.devices}
    contexts = [
        {
            "rank": rank.rank,
            "pid": sight.pid,
            "own_gpu": index[rank.device.uuid or ""],
            "other_gpu": index[sight.gpu],
            **sight.figures,
        }
        for rank, sight in elsewhere
    ]
    others = ", ".join(map(str, sorted({one["other_gpu"] for one in contexts})))
    held_mib = [sight.memory_mib for _, sight in elsewhere if sight.memory_mib is not None]
    sizes = f", {max(held_mib):,.0f} MiB each at most" if held_mib else ""
    text = f"{_ranks(sorted({rank.rank for rank, _ in elsewhere}))} also on GPU {others}{sizes}"
    return Disturbance("rank_on_other_gpu", "found", name, text, {"contexts": contexts})


def _foreign_process(name: str, series: DeviceSeries, strangers: Sequence[_Sight]) -> Disturbance:
    index = {device.id: device.index for device in series.devices}
    figures = [{"pid": sight.pid, "gpu": index[sight.gpu], **sight.figures} for sight in strangers]
    each = ", ".join(f"pid {sight.pid} on GPU {index[sight.gpu]}" for sight in strangers)
    text = f"{each} is none of the cell's ranks"
    return Disturbance("foreign_process", "found", name, text, {"processes": figures})


def _memory_finding(
    name: str,
    series: DeviceSeries,
    ranks: Sequence[RankSummary],
    training: tuple[float, float],
    *,
    shared: bool,
) -> Iterator[Disturbance]:
    """What GPU 0 holds beyond its rank's allocator, against the same on the other GPUs.

    Allocators of replicas may differ by more than a context; what lies beside them does not.
    """
    code: DisturbanceCode = "extra_memory_on_gpu0"
    first, *others = sorted(ranks, key=lambda rank: rank.local_rank)
    if len({rank.device.uuid for rank in ranks}) < len(ranks):
        yield _untold(code, name, "ranks share a GPU")
        return
    if shared:
        yield _untold(code, name, "foreign processes hold memory on the GPUs")
        return
    beside: dict[int, float] = {}
    for rank in ranks:
        used = [
            sample.memory_used_mib
            for when, row in zip(series.times, series.samples, strict=True)
            if training[0] <= when <= training[1]
            and (sample := row.get(rank.device.uuid or "")) is not None
            and sample.memory_used_mib is not None
        ]
        if len(used) < _SAMPLES:
            yield _untold(code, name, "fewer than 2 samples of memory after the first step")
            return
        if rank.peak_reserved_mib is None or max(used) < rank.peak_reserved_mib:
            yield _untold(code, name, "the samples missed what the allocators held at most")
            return
        beside[rank.rank] = max(used) - rank.peak_reserved_mib
    extra = beside[first.rank] - statistics.median(beside[rank.rank] for rank in others)
    if extra > EXTRA_MEMORY_MIB:
        each = extra / len(others)
        text = (
            f"GPU {first.device.index} holds {extra:,.0f} MiB more beside its allocator than the "
            f"others, {each:,.0f} for each other rank (a CUDA context takes some 500)"
        )
        figures = {"extra_mib": extra, "per_other_rank_mib": each, "beside_allocator_mib": beside}
        yield Disturbance(code, "found", name, text, figures)


def _stall_findings(cell: CellRecords) -> Iterator[Disturbance]:
    assert cell.result is not None
    name = cell.planned.name
    if is_profiled(cell.config):
        yield _untold("common_stall", name, "a profiler stops all ranks around its window")
        return
    if len(cell.steps) < cell.result.world_size:
        yield _untold("common_stall", name, "the steps of some ranks are missing")
        return
    stalls = figures_of(cell).stalls
    if not stalls:
        return
    named = listed([f"{one.length_ms:,.0f} ms at {one.begin_s:.2f} s" for one in stalls], 3)
    yield Disturbance(
        "common_stall",
        "found",
        name,
        f"{len(stalls)} {plural(len(stalls), 'stall')} of all ranks at once: {named} after "
        f"the first step began; a median step takes {stalls[0].median_step_ms:,.3g} ms",
        {
            "count": len(stalls),
            "timed": sum(not stall.in_warmup for stall in stalls),
            "begin_s": [round(stall.begin_s, 3) for stall in stalls],
            "length_ms": [round(stall.length_ms, 1) for stall in stalls],
            "median_step_ms": stalls[0].median_step_ms,
        },
    )


FOREIGN_CPU_UP_TO: Final = 0.05
"""Share of a cell's cores, 0 to 1, beyond which others than the cell disturbed it."""

_LEAST_WINDOW_S = 1.0
"""The kernel counts the time of cores in ticks of 10 ms."""


def foreign_cpu_share(ranks: Sequence[RankSummary]) -> float:
    """Share of a cell's cores that processes outside of it had in the timed window, 0 to 1.

    What was busy on the cores that the ranks are bound to, less what the ranks and all they
    started used themselves. So it does not depend on how ranks wait for one another, and other
    cells of the host count only where they come to these cores. Raises :class:`NotMeasuredError`.
    """
    hosts: dict[int, dict[tuple[int, ...], list[CoreUse]]] = {}
    for rank in ranks:
        if rank.core_use is None:
            raise NotMeasuredError(rank.missing.get("core_use", "it was not recorded"))
        of_host = hosts.setdefault(rank.rank - rank.local_rank, {})
        of_host.setdefault(rank.device.cores, []).append(rank.core_use)
    foreign_s = held_s = 0.0
    for of_host in hosts.values():
        if len(set().union(*of_host)) < sum(map(len, of_host)):
            raise NotMeasuredError("ranks share some of their cores and not all")
        for uses in of_host.values():  # on the same cores all ranks saw the same
            window_s = statistics.fmean(use.window_s for use in uses)
            busy_s = statistics.fmean(use.busy_s for use in uses)
            own_s = sum(use.own_s for use in uses)
            if window_s < _LEAST_WINDOW_S:
                raise NotMeasuredError(f"less than {_LEAST_WINDOW_S:g} s were timed")
            if busy_s < own_s / 2:
                raise NotMeasuredError("the kernel does not count what is busy on its cores")
            foreign_s += max(0.0, busy_s - own_s)
            held_s += window_s * uses[0].cores
    return foreign_s / held_s


def is_disturbed(cell: CellRecords) -> bool:
    """Whether others had more than :data:`FOREIGN_CPU_UP_TO` of its cores; False if unknown."""
    try:
        return cell.result is not None and foreign_cpu_share(cell.result.ranks) > FOREIGN_CPU_UP_TO
    except NotMeasuredError:
        return False


def _training(steps: StepFigures) -> tuple[float, float]:
    """From the end of every rank's first step to the end of the first rank's last one.

    During its first step a rank still grows.
    """
    edges = [one.edges_s for one in steps.ranks if one.edges_s is not None and one.steps > 1]
    if not edges:
        return (-math.inf, math.inf)
    return max(e[1] for e in edges), min(e[2] for e in edges)


def _untold(code: DisturbanceCode, cell: str, reason: str) -> Disturbance:
    return Disturbance(code, "cannot be told", cell, reason)


def _ranks(ranks: Sequence[int]) -> str:
    return f"{plural(len(ranks), 'rank')} {', '.join(map(str, ranks))}"
