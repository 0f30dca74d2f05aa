"""Bandwidths, ratios and the seed's rows, from figures that are known."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fakes.recorded import DDP, Spec, edit_ranks, one_run, step_ms, swept, with_ranks, write_sweep
from scalewise.analysis import Run, configurations, load_sweep
from scalewise.analysis import communication as communication_module
from scalewise.analysis.communication import (
    AllReduceCurve,
    ProfiledWindow,
    _achieved,
    _later,
    _transfer_ms,
    measure_communication,
    serial_fraction,
)
from scalewise.analysis.run import measure_mfu
from scalewise.records import (
    STEP_DTYPE,
    CommunicationRecord,
    DeviceFacts,
    DeviceInfo,
    DoctorReport,
    GemmRate,
    HostFacts,
    RankMeasurements,
    StepSeries,
    Timing,
    WindowProfile,
)

CURVE = AllReduceCurve(2, ((8, 0.02), (1_000_000, 0.05), (100_000_000, 0.5)))


def window(**changes: float) -> ProfiledWindow:
    values = {
        "span_ms": 50.0, "total_ms": 6.0, "overlapped_ms": 5.0,
        "least_total_ms": 4.0, "on_ms": 45.0, "off_ms": 42.5,
    } | changes  # fmt: skip
    return ProfiledWindow(cell="c", **values)


def test_the_curve_meets_its_points_and_keeps_its_ends() -> None:
    assert (CURVE.ms(1_000_000), CURVE.ms(1)) == (pytest.approx(0.05), 0.02)
    # Above the largest size its bandwidth stays.
    assert CURVE.ms(200_000_000) == pytest.approx(1.0)
    # Between two sizes it is a straight line in logarithms.
    assert CURVE.ms(10_000_000) == pytest.approx((0.05 * 0.5) ** 0.5)
    assert CURVE.bus_gb_s(100_000_000) == pytest.approx(200.0)
    assert replace(CURVE, ranks=4).bus_gb_s(100_000_000) == pytest.approx(300.0)


def test_bus_bandwidth_counts_what_each_link_carries() -> None:
    # 400 MB in the 4 ms of the rank that waits least; on 4 devices a link carries 1.5 times that.
    assert _achieved(window(), 4e8, 4) == pytest.approx(150.0)
    # Better known: 2 ms of them without any waiting.
    assert _achieved(window(transfer_ms=2.0), 4e8, 4) == pytest.approx(300.0)
    assert _achieved(None, 4e8, 2) is None
    assert _achieved(window(), None, 2) is None


def seen_by(rank: int, *collectives_ms: float) -> WindowProfile:
    return WindowProfile(
        rank, 2, "device", 50.0, 40.0, sum(collectives_ms) / 2, 1.0, (), collectives_ms
    )


def test_a_transfer_is_each_collective_on_the_rank_that_came_last_to_it() -> None:
    # Rank 0 waits in the first, rank 1 in the second and third; two steps.
    ranks = (seen_by(0, 9.0, 1.0, 1.2), seen_by(1, 1.1, 7.0, 5.0))
    assert _transfer_ms(ranks) == pytest.approx((1.1 + 1.0 + 1.2) / 2)
    assert _transfer_ms((seen_by(0, 9.0, 1.0), seen_by(1, 1.1))) is None, "not the same ones"
    assert _transfer_ms((seen_by(0), seen_by(1))) is None, "nobody recorded them"


def test_amdahls_serial_fraction() -> None:
    assert serial_fraction(4.0, 4) == pytest.approx(0.0)
    assert serial_fraction(1.0, 8) == pytest.approx(1.0)
    # Half of it serial: S = 1 / (0.5 + 0.5 / 4).
    assert serial_fraction(1.6, 4) == pytest.approx(0.5)


def series(rank: int, *arrivals_ms: float) -> StepSeries:
    rows = np.zeros(len(arrivals_ms), STEP_DTYPE)
    rows["step"], rows["device_step_ms"] = np.arange(len(rows)), 45.0
    rows["device_arrival_ms"] = arrivals_ms
    return StepSeries(rank, rows, 0)


def test_what_of_it_comes_before_the_last_gradient_is_the_later_arrival() -> None:
    ranks = (series(0, 42.0, 41.0, 42.2, 41.0, 99.0), series(1, 43.0, 41.2, 43.2, 41.2, 99.0))
    # Steps 0 and 2 reduce: 42.5 and 42.7 over the ranks, against 41.1 without. Step 4 is neither.
    assert _later(ranks, (0, 2), (1, 3)) == pytest.approx(1.5)
    assert _later(ranks, (0, 2), ()) is None
    assert _later((series(0, float("nan"), float("nan")),), (0,), (1,)) is None


@pytest.mark.parametrize(("key", "timed"), [("anatomy", True), ("window", False), ("trace", False)])
def test_a_cell_under_the_profiler_is_not_timed(tmp_path: Path, key: str, timed: bool) -> None:
    (one,) = configurations(swept(tmp_path, Spec(config={"profile": {key: True}})))
    assert one.is_timed == timed


def test_the_expected_time_is_that_of_all_buckets_at_the_doctors_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(communication_module, "all_reduce_curve", lambda *_: CURVE)
    write_sweep(tmp_path, [DDP])
    four = {"gradient_bytes": 4_000_000, "gradient_buckets": 4}
    edit_ranks(tmp_path, lambda rank: rank.update({n: of - rank["rank"] for n, of in four.items()}))
    (config,) = configurations(load_sweep(tmp_path))
    found = measure_communication(config, None, None)
    assert (found.gradient_bytes, found.buckets) == (4_000_000, 4), "of rank 0"
    assert found.expected_ms == pytest.approx(4 * CURVE.ms(1_000_000))
    assert found.doctor_bus_gb_s == pytest.approx(CURVE.bus_gb_s(1_000_000))
    sent = [{"communication": CommunicationRecord("gradients", 1.0, 2e6 + n)} for n in (0, 2)]
    config = replace(config, runs=(with_ranks(config.runs[0], *sent),))
    assert measure_communication(config, None, None).payload_bytes == 2e6 + 1, "compressed"


# MFU: known FLOPs and times in, known shares out; a peak that is not known has its reason.
FLOPS = 12e6  # what the recorded cells declare


def with_data_sheet(run: Run) -> Run:
    provenance = replace(run.cell.provenance, peak_tflops={"fp32": 2.0}, peak_source="a sheet")
    return replace(run, cell=replace(run.cell, provenance=provenance))


def doctor(*devices: tuple[DeviceInfo, float]) -> DoctorReport:
    ranks = tuple(
        RankMeasurements(
            r, "done", gemm=(
                GemmRate("fp32", 1024, Timing((1.0,), 1), 0.5 * tflops),
                GemmRate("fp32", 8192, Timing((1.0,), 1), tflops),
                GemmRate("bf16", 8192, Timing((1.0,), 1), 8 * tflops),
            ),
        )
        for r, (_, tflops) in enumerate(devices)
    )  # fmt: skip
    host = HostFacts("h", "Linux", "a CPU", (0,), None, None, None, None, None, None, (), None,
                     None, {})  # fmt: skip
    facts = tuple(DeviceFacts(device) for device, _ in devices)
    return DoctorReport(0.0, 1.0, True, host, None, facts, (), ranks)


@pytest.mark.parametrize("spec", [Spec(), DDP])
def test_mfu_is_declared_work_over_the_peak_of_one_device(tmp_path: Path, spec: Spec) -> None:
    (figure,) = measure_mfu(with_data_sheet(one_run(tmp_path, spec))).figures
    expected = FLOPS * 128 / (step_ms(spec) / 1e3) / spec.devices / 1e12
    assert figure.achieved_tflops == pytest.approx(expected, rel=1e-3)
    assert figure.share == pytest.approx(expected / 2.0, rel=1e-3)
    assert (figure.against, figure.source) == ("data sheet", "a sheet")


def test_the_measured_gemm_of_the_same_devices_is_a_peak_too(tmp_path: Path) -> None:
    run = one_run(tmp_path, DDP)
    first, second = (rank.device for rank in run.cell.result.ranks)
    found = measure_mfu(run, doctor((second, 3.0), (first, 1.0)))
    (figure,) = found.figures
    assert (figure.against, figure.peak_tflops) == ("measured GEMM", pytest.approx(2.0))
    assert "no hardware profile" in found.missing["data sheet"]


@pytest.mark.parametrize("other", [DeviceInfo("cuda", "H200", "GPU-z"), DeviceInfo("cpu", "one")])
def test_the_gemm_of_other_devices_is_no_peak(tmp_path: Path, other: DeviceInfo) -> None:
    found = measure_mfu(one_run(tmp_path, Spec(kind=other.kind)), doctor((other, 3.0)))
    assert found.figures == ()
    assert "holds no fp32 GEMM of" in found.missing["measured GEMM"]


def test_a_profile_that_was_allowed_not_to_fit_has_no_say(tmp_path: Path) -> None:
    peak = {"fp32_tflops": 67.0, "source": "s", "date": "d"}
    for allowed, count in ((False, 1), (True, 0)):
        hardware = {"name": "h200", "peak": peak, "allow_mismatch": allowed}
        run = one_run(tmp_path / str(allowed), Spec(config={"hardware": hardware}))
        assert len(measure_mfu(run).figures) == count


def test_a_model_without_declared_flops_has_none(tmp_path: Path) -> None:
    run = one_run(tmp_path, Spec())
    found = measure_mfu(with_data_sheet(with_ranks(run, {"flops_per_sample": None})))
    assert found.figures == ()
    assert "declares no FLOPs" in found.missing["data sheet"]
