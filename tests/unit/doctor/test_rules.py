"""Findings from synthetic measurements: one fault each, and none on a healthy host."""

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
from rich.console import Console

from fakes.golden import stays
from scalewise import records
from scalewise.doctor.rules import advise, expected_gb_s, known_findings, pcie_gb_s
from scalewise.report import show_doctor

T = TypeVar("T")
Change = Callable[[records.DoctorReport], records.DoctorReport]


def _timing(median_us: float) -> records.Timing:
    return records.Timing((0.99 * median_us, median_us, 1.01 * median_us), 10)


def _rank(number: int) -> records.RankMeasurements:
    """A healthy H200."""
    gemm = tuple(
        records.GemmRate(precision, 8192, _timing(1.1e12 / rate / 1e6), rate)
        for precision, rate in (("fp32", 50.0), ("bf16", 760.0), ("fp8", 1300.0))
    )
    copies = (
        records.CopyRate("device", True, 2**30, _timing(500), 4290, True),
        records.CopyRate("h2d_pinned", False, 2**27, _timing(2400), 55.9, True),
        records.CopyRate("d2h_pinned", False, 2**27, _timing(2440), 55.0, True),
        records.CopyRate("d2h_pinned", True, 2**27, _timing(2540), 53.0, True),
    )
    return records.RankMeasurements(
        number, "done", gemm=gemm, copies=copies, pcie=records.PcieLink(5, 16, 5, 16),
        launch=(records.LaunchCost("enqueue", _timing(3.5)),), versions={"torch": "2.11.0"},
    )  # fmt: skip


def _pair(gb_s: float, *, direct: bool = True, correct: bool = True) -> records.PairRate:
    t = _timing(2**28 / gb_s / 1e3)
    return records.PairRate(
        "cuda copy", 0, 1, 2**28, direct, t, t, t, gb_s, gb_s, 1.9 * gb_s, correct
    )


def _all_reduce(gb_s: float, *, correct: bool = True) -> records.CollectiveRate:
    timing = _timing(2**30 / gb_s / 1e3)
    return records.CollectiveRate("nccl", "all_reduce", 2, 2**30, timing, gb_s, gb_s, correct)


def _healthy() -> records.DoctorReport:
    """Two H200s with NVLink on an idle, roomy host."""
    devices = tuple(
        records.DeviceFacts(
            records.DeviceInfo("cuda", "NVIDIA H200", f"GPU-{i}", i, own, 143_771.0),
            near_cores=own, other_processes=0, ecc_uncorrected=0, remapped_rows=0,
        )
        for i, own in enumerate(((0, 1, 2, 3), (4, 5, 6, 7)))
    )  # fmt: skip
    host = records.HostFacts(
        host="abc", platform="Linux", processor="Xeon", usable_cores=tuple(range(8)),
        cpu_quota=None, memory_limit_mib=None, memory_total_mib=262_144,
        memory_available_mib=250_000, shm_total_mib=131_072, shm_free_mib=131_000,
        numa_nodes=(records.NumaNode(0, tuple(range(8))),), cpu_governor="performance",
        cpu_pressure_percent=0.5, environment={},
    )  # fmt: skip
    first = replace(_rank(0), pairs=(_pair(380),), collectives=(_all_reduce(328),))
    links = (records.PairLink(0, 1, "NV18", "ok"),)
    return records.DoctorReport(0.0, 40.0, False, host, "580", devices, links, (first, _rank(1)))


def _host(**changes: object) -> Change:
    return lambda r: replace(r, host=replace(r.host, **changes))  # type: ignore[arg-type]


def _ranks(number: int, **changes: object) -> Change:
    return lambda r: replace(r, ranks=_changed(r.ranks, number, changes))


def _device(number: int, **changes: object) -> Change:
    return lambda r: replace(r, devices=_changed(r.devices, number, changes))


def _changed(entries: tuple[T, ...], number: int, changes: Mapping[str, object]) -> tuple[T, ...]:
    return tuple(
        replace(entry, **changes) if i == number else entry  # type: ignore[type-var]
        for i, entry in enumerate(entries)
    )


def _link(kind: str, access: str) -> Change:
    return lambda r: replace(r, links=(records.PairLink(0, 1, kind, access),))


def _all(*changes: Change) -> Change:
    return lambda report: functools.reduce(lambda r, change: change(r), changes, report)


def _slower(factor: float, *precisions: str) -> Change:
    gemm = tuple(
        replace(g, timing=_timing(g.timing.median_us * factor)) if g.precision in precisions else g
        for g in _rank(1).gemm
    )
    return _ranks(1, gemm=gemm)


def _soak(first: float, last: float, reasons: tuple[str, ...] = (), count: int = 10) -> Change:
    middle = [0.0] * (count - 6)
    rates = [first + 9, first, first - 9, *middle, last - 9, last, last + 9][:count]
    windows = tuple(
        records.SoakWindow(i, rate, 1900, 70, 690.0, reasons) for i, rate in enumerate(rates)
    )
    return _ranks(1, soak=records.Soak("bf16", 8192, windows))


_P2P_OFF = {"NCCL_P2P_DISABLE": "1"}

FAULTS: Mapping[str, tuple[Change, str]] = {
    "variable": (_all(_host(environment=_P2P_OFF),
                      _ranks(0, pairs=(_pair(380),), collectives=(_all_reduce(27),))),
                 "p2p_disabled_by_environment"),
    "driver refuses": (_link("NV18", "disabled by a driver setting"), "p2p_unavailable"),
    "CUDA refuses, switch": (_all(_link("PIX", "ok"),
                                  _ranks(0, pairs=(_pair(26, direct=False),))), "p2p_unavailable"),
    "ACS": (_all(_link("PIX", "ok"), _ranks(0, pairs=(_pair(6),))), "p2p_below_link"),
    "NVLink down": (_ranks(0, pairs=(_pair(40),), collectives=()), "p2p_below_link"),
    "IOMMU corrupts": (_ranks(0, pairs=(_pair(380, correct=False),)), "wrong_data"),
    "wrong sums": (_ranks(0, collectives=(_all_reduce(328, correct=False),)), "wrong_data"),
    "NCCL over shm": (_ranks(0, collectives=(_all_reduce(27),)), "nccl_below_link"),
    "x8 of x16": (_ranks(1, pcie=records.PcieLink(5, 8, 5, 16)), "pcie_below_maximum"),
    "gen 1 of 4": (_ranks(1, pcie=records.PcieLink(1, 16, 4, 16)), "pcie_below_maximum"),
    "far memory": (
        _ranks(1, copies=(records.CopyRate("h2d_pinned", False, 2**27, _timing(9000), 15, True),)),
        "staging_below_link"),
    "slow device": (_slower(1.2, "fp32", "bf16", "fp8"), "slow_device"),
    "ecc": (_device(0, ecc_uncorrected=2), "ecc_errors"),
    "rate falls": (_soak(760, 650), "not_steady"),
    "thermal": (_soak(760, 755, ("thermal slowdown (hardware)",)), "not_steady"),
    "docker's shm": (_host(shm_total_mib=64.0, shm_free_mib=64.0), "small_shm"),
    "shm full": (_host(shm_free_mib=10.0), "small_shm"),
    "two cores": (_host(usable_cores=(0, 1)), "few_cores"),
    "quota": (_host(cpu_quota=1.5), "few_cores"),
    "memory limit": (_host(memory_limit_mib=8192.0), "memory_cap"),
    "other node": (_device(1, near_cores=(64, 65)), "far_cores"),
    "pressure": (_host(cpu_pressure_percent=52.0), "busy_host"),
    "neighbour": (_device(1, other_processes=2), "busy_device"),
    "slow host": (_ranks(1, launch=(records.LaunchCost("enqueue", _timing(45)),)), "slow_launches"),
    "powersave": (_host(cpu_governor="powersave"), "cpu_governor"),
}  # fmt: skip

BEYOND = _all(
    _host(usable_cores=(0, 1, 2), memory_limit_mib=2 * 16_383.0, cpu_pressure_percent=10.1),
    _ranks(0, pairs=(_pair(179.0),), collectives=(_all_reduce(71.0),)),
    _ranks(1, launch=(records.LaunchCost("enqueue", _timing(20.1)),),
           copies=(records.CopyRate("h2d_pinned", False, 2**27, _timing(5000), 25.0, True),)),
    _soak(760, 721, count=6),
)  # fmt: skip
HEALTHY: Mapping[str, Change] = {
    "two H200s": lambda report: report,
    "one H200 and two cores": lambda r: replace(
        _host(usable_cores=(0, 1))(r), devices=r.devices[:1], links=(), ranks=r.ranks[:1]
    ),
    "nothing known": lambda r: replace(
        r,
        links=(records.PairLink(0, 1, None, None),),
        devices=tuple(records.DeviceFacts(d.device) for d in r.devices),
        ranks=tuple(records.RankMeasurements(i, "start") for i in range(2)),
        host=replace(
            r.host, shm_total_mib=None, shm_free_mib=None, memory_total_mib=None,
            cpu_pressure_percent=None, cpu_governor=None,
        ),
    ),
    "PHB without peer access": _all(
        _link("PHB", "chipset not supported"), _ranks(0, pairs=(_pair(20, direct=False),))
    ),
    "PIX at its rate": _all(
        _link("PIX", "ok"), _ranks(0, pairs=(_pair(50),), collectives=(_all_reduce(40),))
    ),
    "a path of no known rate": _all(_link("PIX", "ok"), _ranks(0, pcie=None)),
    "variable without a path": _all(_host(environment=_P2P_OFF), _link("SYS", "ok")),
    "peers within 5 %": _slower(1.05, "fp32", "bf16", "fp8"),
    "one of three precisions": _slower(1.2, "fp8"),
    "power cap": _soak(760, 745, ("power cap",)),
    "at the limit of every figure": _all(
        _host(
            shm_total_mib=1024.0, shm_free_mib=256.0, usable_cores=(0, 1, 2, 3), cpu_quota=4.0,
            memory_limit_mib=2 * 16_384.0, cpu_pressure_percent=10.0,
        ),
        _ranks(0, pairs=(_pair(0.4 * 450),), collectives=(_all_reduce(0.4 * (0.4 * 450)),)),
        _ranks(1, launch=(records.LaunchCost("enqueue", _timing(20.0)),),
               copies=(records.CopyRate("h2d_pinned", False, 2**27, _timing(5000),
                                        0.4 * 63.008, True),)),
        _soak(760, 0.95 * 760),
    ),
    "what is copied at once": _ranks(
        1, copies=(records.CopyRate("h2d_pinned", True, 2**27, _timing(9000), 15, True),)
    ),
    "few windows": _soak(760, 650, count=5),
    "a small message": _ranks(0, collectives=(replace(_all_reduce(27), bytes=2**26),)),
    "width not told": _ranks(1, pcie=records.PcieLink(None, None, None, None)),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_alone_with_evidence(name: str) -> None:
    change, code = FAULTS[name]
    findings = advise(change(_healthy()))
    assert [f.code for f in findings] == [code]
    assert all((findings[0].text, findings[0].evidence, findings[0].advice, findings[0].refuted_by))
    assert not {"{", "}"}.intersection(findings[0].text + findings[0].evidence)


def test_every_known_finding_has_a_fault_that_brings_it_and_its_numbers_stay() -> None:
    assert {code for _, code in FAULTS.values()} == set(known_findings())
    found = {name: advise(change(_healthy()))[0] for name, (change, _) in FAULTS.items()}
    said = {name: f"{one.text} {one.evidence}" for name, one in found.items()}
    stays("doctor", {name: re.findall(r"\d+(?:\.\d+)?", text) for name, text in said.items()})


def test_a_little_beyond_its_limit_each_figure_is_named() -> None:
    assert {f.code for f in advise(BEYOND(_healthy()))} == {
        "few_cores", "memory_cap", "busy_host", "p2p_below_link", "nccl_below_link",
        "slow_launches", "staging_below_link", "not_steady",
    }  # fmt: skip


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_or_unknown_host_is_not_accused(name: str) -> None:
    assert advise(HEALTHY[name](_healthy())) == []


def test_the_gravest_comes_first() -> None:
    change = _all(
        _host(cpu_governor="powersave", shm_total_mib=64.0, shm_free_mib=1.0),
        _device(0, ecc_uncorrected=2),
    )
    assert [f.severity for f in advise(change(_healthy()))] == ["fault", "warning", "note"]


def test_shares_of_a_cpu_are_slow_only_where_all_figures_say_so() -> None:
    def on_cpu(report: records.DoctorReport) -> records.DoctorReport:
        cpus = tuple(
            records.DeviceFacts(records.DeviceInfo("cpu", "Xeon", cores=(i,))) for i in range(2)
        )
        return replace(report, devices=cpus, links=())

    products_only = on_cpu(_slower(1.5, "fp32", "bf16", "fp8")(_healthy()))
    assert advise(products_only) == []
    copy = records.CopyRate("device", True, 2**30, _timing(800), 2700, True)
    (finding,) = advise(_ranks(1, copies=(copy,))(products_only))
    assert finding.code == "slow_device" and finding.text.startswith("rank 1")


def test_the_curve_of_all_reduces_is_read_by_backend_and_ranks() -> None:
    small = replace(_all_reduce(1.0), bytes=8, timing=_timing(40.0))
    other = replace(small, collective="broadcast")
    report = _ranks(0, collectives=(_all_reduce(328), small, other))(_healthy())
    assert report.curve("nccl", 2) == ((8, 0.04), (2**30, pytest.approx(3.2736, abs=1e-4)))
    assert report.curve("nccl", 4) == report.curve("gloo", 2) == ()


def test_what_links_carry() -> None:
    for kind, gb_s in (("NV18", 450), ("PIX", 63.008), ("SYS", None)):
        assert expected_gb_s(_healthy(), records.PairLink(0, 1, kind, "ok")) == gb_s
    assert [pcie_gb_s(n, 2) for n in range(1, 7)] == [0.5, 1.0, 1.97, 3.938, 7.876, 15.126]
    assert pcie_gb_s(4, None) is pcie_gb_s(None, 16) is pcie_gb_s(9, 16) is None


def test_a_report_comes_back_from_disk_and_is_shown(tmp_path: Path) -> None:
    report = _soak(760, 650)(_healthy())
    missing = {"gemm fp8": "RuntimeError: [not] supported"}
    report = _ranks(1, missing=missing)(replace(report, findings=tuple(advise(report))))
    records.save_record(tmp_path, report)
    assert records.find_record(tmp_path, records.DoctorReport) == report
    console = Console(width=120)
    with console.capture() as captured:
        show_doctor(report, console)
    text = captured.get()
    for expected in ("NV18", "328", "760", "380", "hottest", "1 GiB", "(n-1)/n", "torch 2.11.0"):
        assert expected in text
    assert "rank 1: gemm fp8: RuntimeError: [not] supported" in text
    assert "ends at 85.5 %" in text and "wrong if:" in text
