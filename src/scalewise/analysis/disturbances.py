"""What disturbed a run from outside its training: processes, contexts and stalls of all ranks.

A rank whose thread forgets to choose its GPU opens a second context on the first one, and the
driver stops every rank meanwhile. Means hide that; the driver's process list and the step times
over wall time show it. A finding never makes a run invalid.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from scalewise.analysis.comparability import grouped
from scalewise.analysis.figures import listed
from scalewise.analysis.model import CellRecords, is_profiled
from scalewise.analysis.remarks import Remark
from scalewise.analysis.step_figures import StepFigures, figures_of
from scalewise.analysis.steps import NotMeasuredError
from scalewise.host import CoreUse, plural
from scalewise.records import DeviceSample, DeviceSeries, RankSummary

OF_SEVERAL: Final = ("rank_on_other_gpu", "extra_memory_on_gpu0")
"""What only a cell on several GPUs can have."""
EXTRA_MEMORY_MIB: Final = 200.0
"""A CUDA context takes 520 MiB on an H200; replicas differ by less than 10 beyond their
allocators."""
_SAMPLES = 2
"""A process that is just ending is seen once."""


def disturbances(cell: CellRecords) -> tuple[Remark, ...]:
    """What disturbed a finished cell that trained, and what cannot be told; none for others."""
    if cell.result is None or not cell.steps:
        return ()
    run, each = cell.planned.name, [*_of_devices(cell), *_stalls(cell)]
    found = [replace(one, run=run) for one in each if isinstance(one, Remark)]
    # What was found on one host outranks what another host cannot tell.
    untold = dict(reversed([one for one in each if not isinstance(one, Remark)]))
    left = [code for code in reversed(untold) if code not in [one.code for one in found]]
    for why, codes in grouped(left, untold.__getitem__).items():
        found.append(Remark("not_told", {"codes": " and ".join(codes), "why": why}, run=run))
    return tuple(found)


Found = Remark | tuple[str, str]
"""What was found, or a code that cannot be told and why."""


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


def _of_devices(cell: CellRecords) -> Iterator[Found]:
    assert cell.result is not None
    ranks = [rank for rank in cell.result.ranks if rank.device.kind == "cuda"]
    training = _training(figures_of(cell))
    seen: set[int] = set()
    for series in cell.devices:
        sampled = {device.id for device in series.devices}
        here = [rank for rank in ranks if rank.device.uuid in sampled]
        if series.source == "nvml" and here:
            seen |= {rank.rank for rank in here}
            yield from _of_host(series, here, training)
    unseen = [rank.rank for rank in ranks if rank.rank not in seen]
    if unseen:
        ranks_unseen = f"{plural(len(unseen), 'rank')} {', '.join(map(str, unseen))}"
        codes = ("foreign_process", *(OF_SEVERAL if len(ranks) > 1 else ()))
        yield from ((code, f"the GPU of {ranks_unseen} was not sampled") for code in codes)


def _of_host(
    series: DeviceSeries, ranks: Sequence[RankSummary], training: tuple[float, float]
) -> Iterator[Found]:
    sights, index = _sights(series), {device.id: device.index for device in series.devices}
    gpus = dict.fromkeys(rank.device.uuid for rank in ranks)
    seen = {(sight.gpu, sight.pid) for sight in sights}
    lost = [rank for rank in ranks if (rank.device.uuid, rank.pid) not in seen]
    sampled = zip(series.times, series.samples, strict=True)
    rows = [row for when, row in sampled if training[0] <= when <= training[1]]
    read = {gpu for row in rows for gpu, one in row.items() if one.processes is not None}
    unknown = ""
    if lost or not read >= gpus.keys():
        usual = "the driver lists not every rank on its own GPU (a container, MPS, a short run)"
        unknown = series.unavailable.get("processes", usual)
    elsewhere = [
        (rank, sight)
        for rank in ranks
        if rank not in lost
        for sight in sights
        if sight.pid == rank.pid and sight.gpu != rank.device.uuid and sight.gpu in gpus
    ]
    if elsewhere:
        yield _rank_on_other_gpu(index, elsewhere)
    elif len(gpus) > 1 and unknown:
        yield "rank_on_other_gpu", unknown
    pids = {rank.pid for rank in ranks}
    strangers = [
        sight
        for sight in sights
        if sight.gpu in gpus
        and sight.pid not in pids
        and sum(training[0] <= when <= training[1] for when in sight.times) >= _SAMPLES
    ]
    if unknown:
        yield "foreign_process", unknown
    elif strangers:
        each = [{"pid": one.pid, "gpu": index[one.gpu], **one.figures} for one in strangers]
        named = ", ".join(f"pid {one['pid']} on GPU {one['gpu']}" for one in each)
        yield Remark("foreign_process", {"named": named, "processes": each})
    if len(gpus) > 1:
        yield from _extra_memory(rows, ranks, shared=bool(strangers) and not unknown)


def _sights(series: DeviceSeries) -> list[_Sight]:
    seen: dict[tuple[str, int], list[tuple[float, float | None]]] = {}
    for when, row in zip(series.times, series.samples, strict=True):
        for gpu, sample in row.items():
            for process in sample.processes or ():
                seen.setdefault((gpu, process.pid), []).append((when, process.memory_mib))
    found = []
    for (gpu, pid), readings in seen.items():
        most = max((mib for _, mib in readings if mib is not None), default=None)
        found.append(_Sight(gpu, pid, tuple(when for when, _ in readings), most))
    return found


def _rank_on_other_gpu(
    index: Mapping[str, int], elsewhere: Sequence[tuple[RankSummary, _Sight]]
) -> Remark:
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
    ranks, gpus = (
        ", ".join(map(str, sorted({one[key] for one in contexts}))) for key in ("rank", "other_gpu")
    )
    held_mib = [sight.memory_mib for _, sight in elsewhere if sight.memory_mib is not None]
    sizes = f", {max(held_mib):,.0f} MiB each at most" if held_mib else ""
    figures = {"ranks": ranks, "gpus": gpus, "sizes": sizes, "contexts": contexts}
    return Remark("rank_on_other_gpu", figures)


def _extra_memory(
    rows: Sequence[Mapping[str, DeviceSample]], ranks: Sequence[RankSummary], *, shared: bool
) -> Iterator[Found]:
    """Allocators of replicas may differ by more than a context; what lies beside them does not.

    ``rows`` are samples while they trained.
    """
    code = "extra_memory_on_gpu0"
    first, *others = sorted(ranks, key=lambda rank: rank.local_rank)
    if shared or len({rank.device.uuid for rank in ranks}) < len(ranks):
        yield code, "others hold memory on the GPUs, or ranks share one"
        return
    beside: dict[int, float] = {}
    for rank in ranks:
        used = [
            sample.memory_used_mib
            for row in rows
            if (sample := row.get(rank.device.uuid or "")) is not None
            and sample.memory_used_mib is not None
        ]
        held = rank.peak_reserved_mib
        if len(used) < _SAMPLES or held is None or max(used) < held:
            yield code, "samples after the first step missed what the allocators held at most"
            return
        beside[rank.rank] = max(used) - held
    extra = beside[first.rank] - statistics.median(beside[rank.rank] for rank in others)
    if extra > EXTRA_MEMORY_MIB:
        figures = {
            "gpu": first.device.index,
            "extra_mib": extra,
            "per_other_rank_mib": extra / len(others),
            "beside_allocator_mib": beside,
        }
        yield Remark(code, figures)


def _stalls(cell: CellRecords) -> Iterator[Found]:
    assert cell.result is not None
    if is_profiled(cell.config):
        yield "common_stall", "a profiler stops all ranks around its window"
        return
    if len(cell.steps) < cell.result.world_size:
        yield "common_stall", "the steps of some ranks are missing"
        return
    if stalls := figures_of(cell).stalls:
        named = listed([f"{one.length_ms:,.0f} ms at {one.begin_s:.2f} s" for one in stalls], 3)
        figures = {
            "named": named,
            "count": len(stalls),
            "timed": sum(not stall.in_warmup for stall in stalls),
            "begin_s": [round(stall.begin_s, 3) for stall in stalls],
            "length_ms": [round(stall.length_ms, 1) for stall in stalls],
            "median_step_ms": stalls[0].median_step_ms,
        }
        yield Remark("common_stall", figures)


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
    """Without the first step, in which a rank still grows, to the end of the first rank's last."""
    edges = [one.edges_s for one in steps.ranks if one.edges_s is not None and one.steps > 1]
    if not edges:
        return (-math.inf, math.inf)
    return max(e[1] for e in edges), min(e[2] for e in edges)
