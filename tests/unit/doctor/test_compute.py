"""Stopwatches, matrix products, launches and steady load on a CPU: known work, known rates."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from fakes.nvml.fixture import FakeNvml
from fakes.nvml.scenario import Scenario, gpu_uuid
from scalewise import records
from scalewise.doctor import Plan, collectives, compute, copies
from scalewise.doctor.collectives import COLLECTIVES, expected_s, measure_all, most_iterations
from scalewise.doctor.copies import STAGING, copy_rate, host_copies
from scalewise.doctor.plan import Budget, RankRecord
from scalewise.records import CollectiveRate, CopyRate, DataError, DeviceSample, Timing, build
from scalewise.train import Team

_CPU = torch.device("cpu")


@pytest.mark.parametrize(("precision", "least", "most"), [("fp32", 0, 1e-5), ("bf16", 1e-4, 1e-2)])
def test_random_products_are_right(precision: compute.Precision, least: float, most: float) -> None:
    result = compute.gemm(_CPU, precision, 64)()
    assert isinstance(result, torch.Tensor)
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(64, 64, generator=generator) for _ in range(2))
    right = a @ b
    error = torch.linalg.norm(result.float() - right) / torch.linalg.norm(right)
    assert least <= float(error) < most


@pytest.mark.parametrize(
    ("capability", "expected"),
    [((6, 1), ("fp32",)), ((7, 5), ("fp32", "fp16")), ((8, 0), ("fp32", "tf32", "bf16", "fp16"))],
)
def test_a_precision_is_measured_where_the_hardware_multiplies_it(
    capability: tuple[int, int], expected: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: capability)
    assert compute.precisions(torch.device("cuda")) == expected


def test_a_product_leaves_half_of_the_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for free, size in (2_684_354_560, 8192), (2_684_354_559, 4096), (167_772_159, 1024), (0, 1024):
        monkeypatch.setattr("torch.cuda.mem_get_info", lambda _, one=free: (one, 1))
        assert compute._gemm_size(torch.device("cuda")) == size
    assert compute.gemm_tflops(1000, 0.5) == 0.004


def test_fp32_products_use_no_tensor_cores() -> None:
    torch.set_float32_matmul_precision("high")
    rate = compute.gemm_rate(_CPU, "fp32", 0.01)
    assert torch.get_float32_matmul_precision() == "highest"
    assert rate.tflops == compute.gemm_tflops(512, rate.timing.median_us / 1e6)


def test_bandwidth_is_bytes_over_the_median_and_spread_the_range_over_it() -> None:
    timing = Timing((999.0, 1000.0, 4000.0), 5)
    assert compute.gb_per_s(2**30, timing) == 1073.741824
    assert timing.spread_percent == pytest.approx(300.1)
    for samples_us in ([], [0.0]):
        with pytest.raises(DataError, match=r"^samples_us"):
            build(Timing, {"samples_us": samples_us, "iterations": 1})


@pytest.mark.parametrize(
    ("once_s", "budget_s", "expected"),
    [
        (1e-6, 0.7, (7, 1000)),  # quick: the most iterations there are
        (1e-3, 0.705, (7, 100)),
        (0.1, 0.75, (7, 1)),
        (0.2, 1.0, (5, 1)),
        (9.0, 1.0, (3, 1)),  # slow: never fewer than three
    ],
)
def test_repeated_within_budget(once_s: float, budget_s: float, expected: tuple[int, int]) -> None:
    assert compute.repetitions(once_s, budget_s) == expected


def test_a_stopwatch_runs_the_work_as_often_as_it_is_told() -> None:
    assert compute.host_stopwatch(work := Mock(), 3) > 0 and work.call_count == 3


def test_the_slowest_rank_counts_and_each_batch_is_prepared() -> None:
    team = Team(0, 1)
    team.largest = lambda values: [max(value, 0.02) for value in values]  # type: ignore[method-assign]
    prepare, watch = Mock(), Mock(side_effect=lambda _, iterations: 0.001 * iterations)
    timing = compute.measure(watch, Mock(), 0.4, team=team, prepare=prepare, most_iterations=2)
    # Estimated by two in a row: 10 ms each, where the other rank is the slower.
    assert timing.samples_us == pytest.approx((10_000.0,) * 7)
    assert [call.args[1] for call in watch.call_args_list] == [1, 1, 2] + 7 * [2]
    assert prepare.call_count == watch.call_count


@pytest.mark.parametrize(
    ("budget", "warm_up", "iterations", "batches", "samples_us"),
    [(112, 11, 16, (96, 64, 64, 16, 16), (5859.375, 3906.25, 3906.25, 976.5625)),
     (7, 1, 1, (300, 1, 1, 1), (292_968.75, 976.5625, 976.5625))],
)  # fmt: skip
def test_a_slower_host_than_was_estimated_ends_beyond_twice_its_budget_and_three(
    budget: int, warm_up: int, iterations: int, batches: tuple[int, ...],
    samples_us: tuple[float, ...],
) -> None:  # fmt: skip
    """In 1024ths of a second, of which each operation took one at first."""
    watch = Mock(side_effect=[one / 1024 for one in (1, 1, warm_up, *batches)])
    assert compute.measure(watch, lambda: None, budget / 1024) == Timing(samples_us, iterations)
    counts = [1, 1, warm_up] + len(samples_us) * [iterations]
    assert [call.args[1] for call in watch.call_args_list] == counts


def test_a_call_has_its_cost() -> None:
    cost = compute.launch_cost(_CPU, 0.02)
    assert cost.kind == "enqueue" and 0.1 < cost.timing.median_us < 1000


def test_an_endurance_run_reads_the_device_once_a_window() -> None:
    readings = iter(range(100))

    def read() -> DeviceSample:
        return DeviceSample("x", temperature_c=40 + next(readings), throttle_reasons=())

    result = compute.soak(_CPU, 0.6, read)
    # How many there are is up to the host.
    assert [w.temperature_c for w in result.windows] == [40 + i for i in range(len(result.windows))]
    alone_s = compute.host_stopwatch(compute.gemm(_CPU, "fp32", result.size), 9) / 9
    alone = compute.gemm_tflops(result.size, alone_s)
    assert all(0.2 < w.tflops / alone < 5 and w.throttle_reasons == () for w in result.windows)
    assert result.windows[-1].at_s > 0.3


@pytest.mark.parametrize(
    ("product_s", "seconds", "count", "window_s"),
    [(2**-7, 4.0, 16, 0.25), (2**-7, 20.0, 40, 0.5), (2**-7, 90.0, 90, 1.0), (2.0, 4.0, 2, 2.0)],
)
def test_an_endurance_run_has_windows_of_a_quarter_to_a_whole_second(
    monkeypatch: pytest.MonkeyPatch, product_s: float, seconds: float, count: int, window_s: float
) -> None:
    """By a clock that nothing else moves."""
    clock, read = [0.0], Mock(return_value=DeviceSample("x"))

    def watch(work: Callable[[], object], iterations: int) -> float:
        begin = clock[0]
        for _ in range(iterations):
            work()
        return clock[0] - begin

    def multiply() -> None:
        clock[0] += product_s

    monkeypatch.setattr(compute, "stopwatch", lambda _: watch)
    monkeypatch.setattr(compute, "gemm", lambda *_: multiply)
    monkeypatch.setattr(compute.time, "perf_counter", lambda: clock[0])
    windows = compute.soak(_CPU, seconds, read).windows
    assert (len(windows), read.call_count) == (count, count)
    assert [one.at_s for one in windows[:2]] == [window_s, 2 * window_s]
    assert {one.tflops for one in windows} == {compute.gemm_tflops(512, product_s)}
    monkeypatch.setattr(compute, "_gemm_size", lambda _: 512)
    for capability, precision in (((7, 5), "fp32"), ((8, 0), "bf16")):
        monkeypatch.setattr("torch.cuda.get_device_capability", lambda _, one=capability: one)
        assert compute.soak(torch.device("cuda"), seconds, read).precision == precision


# The order of copies on several ranks, and their figures. No GPU is needed.
class Meetings(Team):
    """Rank 1 of several, whose peers are always on time."""

    def __init__(self, size: int) -> None:
        super().__init__(0, 1)
        self.rank, self.size = size - 1, size
        self.met = 0

    def barrier(self) -> None:
        self.met += 1


def broken(
    kind: records.CopyKind, device: torch.device, byte_count: int, budget_s: float,
    meet: Callable[[], object] | None = None,
) -> CopyRate:  # fmt: skip
    """A copy of which one kind goes wrong."""
    if meet is not None:
        meet()
    if kind == "d2h_pinned":
        raise RuntimeError("the pattern is broken")
    return CopyRate(kind, meet is not None, byte_count, Timing((1.0,), 1), 1.0, True)


_ALONE = [(kind, False) for kind in STAGING if kind != "d2h_pinned"]
_BROKEN = {"d2h_pinned alone": "RuntimeError: the pattern is broken"}
_BROKEN_TWICE = {**_BROKEN, "d2h_pinned together": "RuntimeError: the pattern is broken"}


@pytest.mark.parametrize(
    ("size", "copied", "missing", "met"),
    [(1, _ALONE, _BROKEN, 1), (2, [*_ALONE, ("h2d_pinned", True)], _BROKEN_TWICE, 2 + 2)],
)
def test_each_rank_copies_alone_then_pinned_kinds_together_and_comes_to_every_meeting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, copied: list[tuple[str, bool]],
    missing: dict[str, str], met: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(copies, "copy_rate", broken)
    team = Meetings(size)
    record = RankRecord(tmp_path / "rank.json", team.rank, _CPU)
    host_copies(record, team, Budget(), None, _CPU)  # without a UUID: NVML is not asked
    assert [(c.kind, c.together) for c in record.found.copies] == copied
    assert (record.found.missing, team.met) == (missing, met)
    monkeypatch.setattr("time.perf_counter", iter([1.5, 4.0]).__next__)
    record.stage("copies", list)
    assert (record.found.stage, record.found.seconds) == ("copies", {"copies": 2.5})


def test_the_link_of_the_gpu_in_question_is_read_while_copies_are_under_way(
    monkeypatch: pytest.MonkeyPatch, fake_nvml: FakeNvml
) -> None:
    fake_nvml(Scenario().h200(3))
    monkeypatch.setattr(copies, "Copy", copy := Mock())
    monkeypatch.setattr(copies, "stopwatch", lambda _: lambda work, count: count / 1000)
    monkeypatch.setattr(copies, "pcie_link", lambda _, gpu: gpu.uuid)
    monkeypatch.setattr("torch.cuda.synchronize", Mock())
    copies._read_pcie(record := Mock(), _CPU, 8, gpu_uuid(1))
    record.note.assert_called_once_with(pcie=gpu_uuid(1))
    assert copy().run.call_count == copies._PCIE_S * 1000


def test_a_copy_in_memory_counts_bytes_read_and_written() -> None:
    rate = copy_rate("host", _CPU, 2**20, 0.01)
    assert rate.correct and rate.kind == "host"
    assert rate.gb_s == pytest.approx(2 * 2**20 / rate.timing.median_us / 1e3)


def test_a_rank_without_buffers_comes_to_the_meeting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "Copy", Mock(side_effect=MemoryError("cannot pin")))
    with pytest.raises(MemoryError):
        copy_rate("h2d_pinned", _CPU, 8, 0.1, meet := Mock())
    meet.assert_called_once_with()


def test_a_copy_that_brought_another_byte_is_wrong() -> None:
    copy = copies.Copy(_CPU, _CPU, 64)
    assert not copy.arrived()
    copy.run()
    assert copy.arrived()
    copy._received[3] += 1
    assert not copy.arrived()


# Collectives: results, sizes, formulas, and the time that the next size will take.
@pytest.mark.parametrize("ranks", [2, 3, 8, 72])
def test_an_all_reduce_in_place_never_leaves_the_range_of_fp32(ranks: int) -> None:
    count = most_iterations("all_reduce", ranks)
    assert float(ranks) ** count <= 1e30 < float(ranks) ** (count + 1)
    largest = (6 + ranks) * float(ranks) ** count
    assert count >= 10
    assert torch.isfinite(torch.tensor(largest, dtype=torch.float32))
    assert most_iterations("broadcast", ranks) == most_iterations("all_reduce", 1) == 100


@pytest.mark.parametrize(
    ("kind", "ranks", "sizes"),
    [("broadcast", 3, [4, 8, 100]), ("all_gather", 2, [8, 8, 96]), ("all_gather", 3, [12, 12, 96])],
)
def test_sizes_are_whole_values_and_the_sender_of_a_broadcast_has_them(
    kind: records.Collective, ranks: int, sizes: list[int]
) -> None:
    tasks = [collectives.exercise(kind, size, 0, ranks, _CPU, None) for size in (1, 8, 101)]
    assert [one.byte_count for one in tasks] == sizes
    tasks[2].fill()
    assert tasks[2].is_right() is (kind == "broadcast")


@pytest.mark.parametrize(("collective", "sent", "right", "bus_gb_s"), [
    ("all_reduce", [2, 3, 4, 5, 6, 7, 8] * 2, [6, 10, 14, 18, 22, 26, 30] * 2, 84.0),
    ("broadcast", [-1] * 14, [0, 1, 2, 3, 4, 5, 6] * 2, 56.0),
    ("all_gather", [2, 3, 4], [0, 1, 2, 1, 2, 3, 2, 3, 4, 3, 4, 5], 36.0),
    ("reduce_scatter", [2, 3, 4, 5, 6, 7, 8, 2, 3, 4, 5, 6], [30, 6, 10], 36.0),
])  # fmt: skip
def test_the_third_of_four_ranks_sends_its_own_and_knows_what_must_arrive(
    monkeypatch: pytest.MonkeyPatch, collective: records.Collective, sent: list[int],
    right: list[int], bus_gb_s: float,
) -> None:  # fmt: skip
    """Of 58 bytes, 14 whole values, or 12 in four equal parts; each in a nanosecond."""

    def call(into: torch.Tensor, *rest: object, group: object) -> None:
        source = next(one for one in (*rest, into) if isinstance(one, torch.Tensor))
        assert source.nan_to_num(-1).tolist() == sent
        assert rest in ((), (0,)) if source is into else into.isnan().all()
        into.copy_(torch.tensor(right))

    for name in ("_ALL_GATHER", "_REDUCE_SCATTER", "dist.all_reduce", "dist.broadcast"):
        monkeypatch.setattr(f"scalewise.doctor.collectives.{name}", call)
    timed = Mock(return_value=Timing((0.001,), 1))
    monkeypatch.setattr(collectives, "measure", timed)
    team = Meetings(4)
    team.rank, team.largest = 2, list  # type: ignore[method-assign, assignment]

    def rate() -> object:
        return collectives.measure_collective(team, "gloo", _CPU, None, collective, 58, 0.5)

    size = 4 * max(len(sent), len(right))
    expected = CollectiveRate("gloo", collective, 4, size, timed(), float(size), bus_gb_s, True)
    assert rate() == expected
    right[1] += 1
    assert rate() == replace(expected, correct=False)
    team.largest = lambda _: [1.0]  # type: ignore[method-assign]
    lacking = "not every rank has memory for 58 bytes"
    assert rate() == lacking
    team.largest = list  # type: ignore[method-assign, assignment]
    monkeypatch.setattr(collectives, "exercise", Mock(side_effect=MemoryError))
    assert rate() == lacking


@pytest.mark.parametrize(
    ("took_s", "rank", "done"),
    [(1.0, 0, [3, 3, 3, 3]), (2.0, 0, [2, 2, 1, 1]), (20.0, 0, [1, 1, 1, 1]), (1.0, 1, [])],
)
def test_each_collective_has_its_share_of_the_time_and_the_first_rank_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, took_s: float, rank: int, done: list[int]
) -> None:
    """12 s for four sizes of each: what took too long leaves less to those after it."""
    clock, shares = [0.0], set()

    def one(
        team: Team, backend: Any, device: Any, group: Any, kind: Any, size: int, s: float
    ) -> Any:
        clock[0] += took_s
        shares.add(s)
        return CollectiveRate("gloo", kind, 2, size, Timing((1.0,), 1), 1.0, 1.0, True)

    monkeypatch.setattr(collectives, "measure_collective", one)
    monkeypatch.setattr(collectives.time, "perf_counter", lambda: clock[0])
    record = RankRecord(tmp_path / "rank.json", rank, _CPU)
    team = Meetings(2)
    team.rank, team._control = rank, Mock()
    team.largest = list  # type: ignore[method-assign, assignment]
    assert measure_all(record, team, "gloo", (8, 64, 512, 4096), 12.0)
    found = record.found
    kinds = [each.collective for each in found.collectives]
    assert [kinds.count(kind) for kind in COLLECTIVES if done] == done
    assert len(found.missing) == (len(COLLECTIVES) if done else 0)
    assert shares == {12 / 4 / len(COLLECTIVES) / 2}
    monkeypatch.setattr(collectives, "measure_collective", Mock(side_effect=RuntimeError("lost")))
    assert not measure_all(record, team, "gloo", (8,), 12.0)


def test_sizes_run_from_8_bytes_to_exactly_the_largest() -> None:
    in_mib = {k: v / 2**20 for k, v in vars(Plan().budget).items() if k.endswith("_bytes")}
    assert [*in_mib.values()] == [128, 256, 1024, 256]
    assert (Plan().limit_s(8), Plan(soak_s=60).limit_s(1)) == (136, 182)
    sizes = Plan().sizes("nccl")
    assert (sizes[:3], sizes[-1]) == ((8, 32, 128), 2**30)
    assert Plan().sizes("gloo")[-1] == 64 * 2**20
    assert Plan(quick=True).sizes("gloo") == (8, 512, 2**15, 2**21, 2**26)


@pytest.mark.parametrize(
    ("done", "us", "size", "expected"),
    [(2**17 - 1, 100.0, 2**20, 0.0007), (2**17, 300.0, 196_608, 0.00315),
     (2**18, 300.0, 2**18, 0.0021)],
)  # fmt: skip
def test_time_to_come_grows_with_bytes_and_not_with_latency(
    done: int, us: float, size: int, expected: float
) -> None:
    timing = Timing((us, 10 * us), 1)
    last = CollectiveRate("gloo", "all_reduce", 2, done, timing, 1.0, 1.0, True)
    assert expected_s(last, size) == expected
