"""Contexts, foreign processes, extra memory and stalls: found, not there, or not to be told."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fakes.recorded import DDP, QUIET, START, Spec, rank_summary, repeats, swept, write_sweep
from scalewise.analysis import CellRecords, Remark, analyse, load_sweep
from scalewise.analysis.disturbances import disturbances, foreign_cpu_share
from scalewise.analysis.step_path import common_stalls
from scalewise.analysis.steps import NotMeasuredError
from scalewise.host import CoreUse
from scalewise.records import (
    STEP_DTYPE,
    WARMUP,
    DeviceInfo,
    DeviceProcess,
    DeviceSample,
    DeviceSeries,
    RankSummary,
    SampledDevice,
    StepSeries,
)

STALLED = Path(__file__).parents[2] / "golden" / "stalled"
STEP_MS, STEPS = 100.0, 60
PIDS = (1000, 1001)
UUIDS = ("GPU-0000", "GPU-0001")
"""Of each rank, as the recorded cells have it."""
Processes = Mapping[int, float]
"""Pid to MiB."""


def statuses(found: Sequence[Remark]) -> dict[str, str]:
    told = {one.code: "found" for one in found if one.code != "not_told"}
    unknown = " and ".join(one.figures["codes"] for one in found if one.code == "not_told")
    return told | {code: "cannot be told" for code in unknown.split(" and ") if code}


# Steps


def steps(
    rank: int, long: Mapping[int, float] | None = None, *, begin_s: float = START,
    flags: Mapping[int, int] | None = None, gap_after: int | None = None,
) -> StepSeries:  # fmt: skip
    """Steps of ``STEP_MS``, but for those in ``long``; a second's gap after ``gap_after``."""
    rows = np.zeros(STEPS, STEP_DTYPE)
    ms = np.full(STEPS, STEP_MS)
    for step, length in (long or {}).items():
        ms[step] = length
    for step, flag in (flags or {}).items():
        rows["flags"][step] = flag
    begins = np.concatenate([[0.0], np.cumsum(ms)[:-1]])
    if gap_after is not None:
        begins[gap_after + 1 :] += 1000
    rows["step"], rows["host_step_ms"], rows["device_step_ms"] = np.arange(STEPS), ms, np.nan
    rows["start_ns"] = (begins * 1e6).astype(np.int64)
    return StepSeries(rank, rows, int(begin_s * 1e9))


def test_a_stall_of_all_ranks_is_found_also_where_they_are_a_step_apart() -> None:
    both = [steps(0, {10: 500, 16: 500}), steps(1, {3: 500, 15: 500}, begin_s=START + 0.03)]
    (stall,) = common_stalls(both)
    # From when the later one stalls again, in its step 16, to when the earlier one goes on.
    assert (stall.begin_s, stall.length_ms) == (pytest.approx(2.0), pytest.approx(430, abs=1))
    assert (stall.median_step_ms, stall.in_warmup) == (STEP_MS, False)


def test_a_stall_in_warmup_counts_and_says_so() -> None:
    flags = dict.fromkeys(range(10), WARMUP)
    for of_one, in_warmup in ((flags, True), (None, False)):
        each = [steps(0, {5: 400.0}, flags=flags), steps(1, {5: 400.0}, flags=of_one)]
        (stall,) = common_stalls(each)
        assert stall.in_warmup is in_warmup


def test_steps_that_capture_on_every_rank_are_no_stall() -> None:
    captured = [steps(rank, {10: 900.0}) for rank in (0, 1)]
    assert common_stalls(captured, prepare_steps=11) == ()
    assert len(common_stalls(captured, prepare_steps=10)) == 1
    short = dict.fromkeys(range(STEPS), 31.25)
    for ms, count in ((131.25, 1), (131.125, 0)):
        assert len(common_stalls([steps(0, {**short, 1: ms}, begin_s=0)])) == count


@pytest.mark.parametrize(
    "series",
    [
        [steps(0), steps(1)],
        [steps(0, {20: 500.0}), steps(1)],
        [steps(0, {20: 500.0}), steps(1, {40: 500.0})],
        [steps(0, {20: 190.0}), steps(1, {20: 190.0})],
        [steps(0, {0: 5000.0}), steps(1, {0: 5000.0})],
        [steps(0, gap_after=20), steps(1, gap_after=20)],
    ],
    ids=["steady", "one rank", "not at once", "short", "first step", "validation"],
)
def test_what_is_no_stall_of_all_ranks(series: list[StepSeries]) -> None:
    assert common_stalls(series) == ()


def test_steps_after_a_gap_are_compared_by_when_they_ran() -> None:
    """Without the gap of rank 0 its stall would seem to be over before the other's began."""
    (stall,) = common_stalls([steps(0, {10: 400.0}, gap_after=5), steps(1, {20: 400.0})])
    assert stall.begin_s == pytest.approx(2.0)


# Processes and memory, from a series
def cell(folder: Path, spec: Spec = DDP) -> CellRecords:
    (one,) = load_sweep(write_sweep(folder, [spec])).cells
    return replace(one, steps=tuple(steps(rank) for rank in range(spec.devices)), devices=())


def series(
    lists: Sequence[Sequence[Processes] | None], used_mib: Sequence[float] = (2000.0, 2000.0)
) -> DeviceSeries:
    """A sample each second from the first step on; each is a process list for every GPU."""
    samples = []
    for each in lists:
        row = {}
        for i, uuid in enumerate(UUIDS):
            told = None
            if each is not None:
                told = tuple(DeviceProcess(pid, mib) for pid, mib in each[i].items())
            row[uuid] = DeviceSample(uuid, memory_used_mib=used_mib[i], processes=told)
        samples.append(row)
    devices = tuple(SampledDevice(uuid, i, "H200", i) for i, uuid in enumerate(UUIDS))
    times = tuple(START + 1.05 + i for i in range(len(samples)))
    return DeviceSeries("host", "nvml", 1.0, devices, {}, times, tuple(samples))


HOME: list[Processes] = [{PIDS[0]: 1500.0}, {PIDS[1]: 1500.0}]
SECOND_CONTEXT: list[Processes] = [{PIDS[0]: 1500.0, PIDS[1]: 520.0}, {PIDS[1]: 1500.0}]
FOREIGN: list[Processes] = [{PIDS[0]: 1500.0}, {PIDS[1]: 1500.0, 77: 900.0}]
FOREIGN_NUMBERS: list[Processes] = [{71: 1500.0}, {72: 1500.0}]
UNTOLD = {"rank_on_other_gpu": "cannot be told", "foreign_process": "cannot be told"}
NO_MEMORY = {"extra_memory_on_gpu0": "cannot be told"}


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ([series([HOME] * 3)], {}),
        ([series([SECOND_CONTEXT] + [HOME] * 2)], {"rank_on_other_gpu": "found"}),
        ([series([HOME, FOREIGN, FOREIGN])], {"foreign_process": "found", **NO_MEMORY}),
        ([series([HOME, FOREIGN, HOME])], {}),
        ([series([FOREIGN_NUMBERS] * 3)], UNTOLD),
        ([series([[{}, {}]] * 3)], UNTOLD),
        ([series([None] * 3)], UNTOLD),
        ([series([HOME, [HOME[0], {}], HOME])], {}),
        ([series([[HOME[0], {}]] * 3)], UNTOLD),
        # Lists read only before training clear nobody.
        ([replace(series([HOME] * 3), times=(START - 3, START - 2, START - 1))],
         {**UNTOLD, **NO_MEMORY}),
        ([], {**UNTOLD, **NO_MEMORY}),
        ([series([HOME], (2520.0, 2000.0))], NO_MEMORY),
    ],
    ids=["healthy", "context", "foreign", "foreign once", "other pids", "empty lists", "no lists",
         "once not listed", "one rank never listed", "before training", "nobody sampled it",
         "one sample of memory"],
)  # fmt: skip
def test_processes(tmp_path: Path, devices: list[DeviceSeries], expected: dict[str, str]) -> None:
    assert statuses(disturbances(replace(cell(tmp_path), devices=tuple(devices)))) == expected


def test_a_context_is_told_with_its_numbers(tmp_path: Path) -> None:
    (found,) = disturbances(replace(cell(tmp_path), devices=(series([SECOND_CONTEXT] * 3),)))
    (context,) = found.figures["contexts"]
    assert (context["rank"], context["pid"], context["memory_mib"]) == (1, PIDS[1], 520.0)
    assert (context["own_gpu"], context["other_gpu"], context["samples"]) == (1, 0, 3)


@pytest.mark.parametrize(
    ("used_mib", "reserved_mib", "expected"),
    [
        ((2520.0, 2000.0), (512.0, 512.0), "found"),
        ((2150.0, 2000.0), (512.0, 512.0), None),
        # The allocators differ, what lies beside them does not.
        ((3500.0, 2000.0), (2012.0, 512.0), None),
        ((2000.0, 2000.0), (2012.0, 512.0), "cannot be told"),
        ((2520.0, 2000.0), (None, 512.0), "cannot be told"),
    ],
)
def test_extra_memory_is_what_lies_beside_the_allocators(
    tmp_path: Path, used_mib: tuple[float, float], reserved_mib: tuple[float | None, float],
    expected: str | None,
) -> None:  # fmt: skip
    one = cell(tmp_path)
    ranks = tuple(
        replace(rank, peak_reserved_mib=mib)
        for rank, mib in zip(one.result.ranks, reserved_mib, strict=True)
    )
    one = replace(one, result=replace(one.result, ranks=ranks))
    found = disturbances(replace(one, devices=(series([HOME] * 3, used_mib),)))
    assert statuses(found).get("extra_memory_on_gpu0") == expected
    if expected == "found":
        assert found[0].figures["extra_mib"] == pytest.approx(520)


def test_a_cpu_host_has_stalls_alone_and_a_profiled_one_tells_none(tmp_path: Path) -> None:
    one = cell(tmp_path, replace(DDP, kind="cpu"))
    stalled = tuple(steps(rank, {20: 500.0}) for rank in (0, 1))
    assert disturbances(one) == ()
    assert statuses(disturbances(replace(one, steps=stalled))) == {"common_stall": "found"}
    # A profiler stops all ranks itself.
    profiled = replace(one, steps=stalled, config={"profile": {"window": True}})
    assert statuses(disturbances(profiled)) == {"common_stall": "cannot be told"}


def test_a_driver_that_lists_no_processes_tells_why(tmp_path: Path) -> None:
    blind = replace(series([None] * 3), unavailable={"processes": "no permission"})
    found = disturbances(replace(cell(tmp_path), devices=(blind,)))
    assert (statuses(found), found[0].figures["why"]) == (UNTOLD, "no permission")


# Kept records
@pytest.mark.parametrize("sweep", ["h200x4_gpt2", "h200x4_widths"])
def test_the_stalled_sweeps_are_named_and_their_single_gpu_runs_are_not(sweep: str) -> None:
    contexts = []
    for one in load_sweep(STALLED / sweep).cells:
        if one.result is None:
            continue
        found = {f.code: f for f in disturbances(one) if f.gravity == "doubt"}
        if one.result.world_size == 1:
            assert found == {}
            continue
        assert found["extra_memory_on_gpu0"].figures["per_other_rank_mib"] == pytest.approx(
            525, 0.01
        )
        assert found["common_stall"].figures["count"] <= 2
        assert 150 < max(found["common_stall"].figures["length_ms"]) < 500
        if "rank_on_other_gpu" in found:
            told = found["rank_on_other_gpu"].figures["contexts"]
            contexts.append({(c["rank"], c["other_gpu"]) for c in told})
            assert contexts[-1] == {(rank, 0) for rank in range(1, one.result.world_size)}
    assert contexts


# CPU time of others
def used(**changes: float) -> CoreUse:
    return replace(QUIET, **changes)  # type: ignore[arg-type]


def on_cores(*uses: tuple[tuple[int, ...], CoreUse | None], per_host: int = 9) -> list[RankSummary]:
    """Ranks on these cores, ``per_host`` on each host."""
    return [
        rank_summary(
            rank, DeviceInfo("cpu", "Example CPU", cores=cores), 10, 8,
            local_rank=rank % per_host, metric_rows=0, core_use=use,
        )
        for rank, (cores, use) in enumerate(uses)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("ranks", "share"),
    [
        (on_cores(((0,), used(busy_s=9.0, own_s=8.0))), 0.1),
        # A rank whose core was free makes the share of the cell smaller.
        (on_cores(((0,), used(busy_s=9.0, own_s=7.0)), ((1,), used(busy_s=8.0, own_s=8.0))), 0.1),
        # Ticks may count less than the rank used.
        (on_cores(((0,), used(busy_s=8.9, own_s=9.0))), 0.0),
        # Ranks that are bound to no core of their own saw the same cores: what each used is theirs.
        (on_cores(*[((0, 1), used(cores=2, busy_s=18.0, own_s=8.0))] * 2), 0.1),
        # Cores of equal numbers on two hosts are different cores.
        (on_cores(((0,), used(busy_s=9.0, own_s=7.0)), ((0,), used(busy_s=9.0, own_s=9.0)),
                  per_host=1), 0.1),
    ],
)  # fmt: skip
def test_what_others_had_is_a_share_of_its_cores(ranks: list[RankSummary], share: float) -> None:
    assert foreign_cpu_share(ranks) == pytest.approx(share)


@pytest.mark.parametrize(
    ("ranks", "why"),
    [
        (on_cores(((0,), QUIET), ((1,), None)), "it was not recorded"),
        (on_cores(((0,), used(window_s=0.4))), "less than 1 s were timed"),
        (on_cores(((0,), QUIET), ((0, 1), QUIET)), "ranks share some of their cores and not all"),
        (on_cores(((0,), used(busy_s=0.0))), "the kernel does not count what is busy on its cores"),
    ],
)
def test_what_others_had_may_not_be_known(ranks: list[RankSummary], why: str) -> None:
    with pytest.raises(NotMeasuredError, match=why):
        foreign_cpu_share(ranks)


def auto(*specs: Spec) -> list[Spec]:
    return [replace(spec, config={"repeats": "auto"}) for spec in specs]


STEADY = [1.0, 1.01, 0.99, 1.005]
SINGLE, TWO = Spec(kind="cpu"), replace(DDP, kind="cpu")


def with_crowd(spec: Spec, factors: Sequence[float], *crowded: int) -> list[Spec]:
    """Repeats of which these had others on a third of their cores."""
    every = repeats(spec, factors)
    return [replace(one, foreign_cpu=0.33 if one.repeat in crowded else 0.01) for one in every]


@pytest.mark.parametrize(
    ("spec", "factors", "crowded"),
    [
        (TWO, [1.0, 3.0, 3.0, 0.99], (1, 2)),
        (SINGLE, STEADY, (0, 1, 2)),
        (TWO, [1.0, 3.0, 0.99], (1,)),  # nobody replaces it: repeats are fixed
    ],
)
def test_more_than_a_quarter_is_never_set_aside_and_doubted(
    tmp_path: Path, spec: Spec, factors: Sequence[float], crowded: tuple[int, ...]
) -> None:
    quiet = SINGLE if spec is TWO else TWO
    specs = [*repeats(quiet, STEADY), *with_crowd(spec, factors, *crowded)]
    (pair,) = analyse(swept(tmp_path, *specs)).pairs
    assert pair.speedup.n == (len(factors), len(factors))
    assert [one.code for one in pair.remarks] == ["disturbed"]
    assert f"{len(crowded)} of {len(factors)} runs" in pair.remarks[0].brief


def test_repeats_auto_replaces_a_disturbed_run(tmp_path: Path) -> None:
    """One of three is replaced, as it is a quarter of the four that are made then."""
    specs = auto(*repeats(SINGLE, STEADY), *with_crowd(TWO, [1.0, 3.0, 1.01], 1))
    found = analyse(swept(tmp_path / "before", *specs))
    (group,), (pair,) = found.repeats, found.pairs
    assert ((group.runs, group.wanted), len(pair.multi.set_aside)) == ((2, 3), 1)
    specs = auto(*repeats(SINGLE, STEADY), *with_crowd(TWO, [1.0, 3.0, 1.01, 0.99], 1))
    found = analyse(swept(tmp_path / "after", *specs))
    (group,), (pair,) = found.repeats, found.pairs
    assert ((group.runs, group.because), pair.verdict) == ((3, "verdict"), "pays")
