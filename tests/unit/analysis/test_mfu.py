"""Known FLOPs and times in, known MFU out; a peak that is not known has its reason."""

from dataclasses import replace
from pathlib import Path

import pytest

from fakes.recorded import DDP, Spec, one_run, step_ms, with_ranks
from scalewise.analysis import Run
from scalewise.analysis.mfu import measure_mfu
from scalewise.records import (
    DeviceFacts,
    DeviceInfo,
    DoctorReport,
    GemmRate,
    HostFacts,
    RankMeasurements,
    Timing,
)

FLOPS = 12e6  # what the recorded cells declare


def with_data_sheet(run: Run, **peaks: float) -> Run:
    assert run.cell.provenance is not None
    rates = peaks or {"fp32": 2.0}
    provenance = replace(run.cell.provenance, peak_tflops=rates, peak_source="a sheet")
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
    run = with_data_sheet(one_run(tmp_path, spec))
    (figure,) = measure_mfu(run).figures
    expected = FLOPS * 128 / (step_ms(spec) / 1e3) / spec.devices / 1e12
    assert figure.achieved_tflops == pytest.approx(expected, rel=1e-3)
    assert figure.share == pytest.approx(expected / 2.0, rel=1e-3)
    assert (figure.against, figure.source) == ("data sheet", "a sheet")


def test_the_measured_gemm_of_the_same_devices_is_a_peak_too(tmp_path: Path) -> None:
    run = one_run(tmp_path, DDP)
    first, second = (rank.device for rank in run.cell.result.ranks)
    found = measure_mfu(run, doctor((second, 3.0), (first, 1.0)))
    (figure,) = found.figures
    assert figure.against == "measured GEMM"
    assert figure.peak_tflops == pytest.approx(2.0)
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
