"""Model FLOPs utilisation: declared operations a second over what the device could do.

    MFU = flops_per_sample * samples per second and device / peak of one device

The operations are the model's own declaration (forward and backward of one sample), as in appendix
B of PaLM (arXiv:2204.02311). The peak is the data sheet's, which no kernel reaches, and beside it
the fastest GEMM that ``scalewise doctor`` measured on the same devices. A figure names its peak.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from scalewise.analysis.labels import named
from scalewise.analysis.model import setting
from scalewise.analysis.run import Run
from scalewise.records import DeviceInfo, DoctorReport

Peak = Literal["data sheet", "measured GEMM"]

_FORMATS = {
    "fp32": "fp32", "tf32": "tf32", "bf16-mixed": "bf16", "fp16-mixed": "fp16",
}  # fmt: skip
"""The number format of the products in each shipped precision."""


@dataclass(frozen=True)
class Mfu:
    """One run against one peak."""

    against: Peak
    share: float
    """0.42 is 42 %."""
    achieved_tflops: float
    """Of one device, mean over the devices."""
    peak_tflops: float
    """Of one device."""
    source: str


@dataclass(frozen=True)
class MfuResult:
    """What could be said of one run."""

    figures: tuple[Mfu, ...]
    missing: Mapping[Peak, str]
    """Why there is no figure against a peak."""


def measure_mfu(run: Run, doctor: DoctorReport | None = None) -> MfuResult:
    """MFU of a run against every peak that is known for its devices and precision."""
    achieved = _achieved_tflops(run)
    number_format = _FORMATS.get(str(named(run.cell.config or {}, "precision")))
    found: list[Mfu] = []
    missing: dict[Peak, str] = {}
    peaks: dict[Peak, tuple[float, str] | str] = {
        "data sheet": _data_sheet(run, number_format),
        "measured GEMM": _measured(run, number_format, doctor),
    }
    for against, peak in peaks.items():
        if isinstance(achieved, str):
            missing[against] = achieved
        elif isinstance(peak, str):
            missing[against] = peak
        else:
            rate, source = peak
            found.append(Mfu(against, achieved / rate, achieved, rate, source))
    return MfuResult(tuple(found), missing)


def _achieved_tflops(run: Run) -> float | str:
    """Of one device, in 10^12 operations a second, or why it is not known."""
    if run.samples_per_s is None:
        return run.missing.get("throughput", "no throughput")
    declared = {rank.flops_per_sample for rank in run.ranks}
    if len(declared) != 1 or None in declared:
        return "the model declares no FLOPs (flops_per_sample)"
    (flops,) = declared
    assert flops is not None
    return flops * run.samples_per_s / run.world_size / 1e12


def _data_sheet(run: Run, number_format: str | None) -> tuple[float, str] | str:
    if number_format is None:
        return "the precision has no peak of its own"
    peak = setting(run.cell.config, "hardware.peak")
    # A profile that was allowed not to describe the device has no say about it.
    if isinstance(peak, Mapping) and not setting(run.cell.config, "hardware.allow_mismatch"):
        rate = peak.get(f"{number_format}_tflops")
        if rate is not None:
            return float(rate), f"{peak.get('source')}, {peak.get('date')}"
    known = run.cell.provenance
    if known is not None and number_format in known.peak_tflops:
        return known.peak_tflops[number_format], known.peak_source or "data sheet"
    named = _names([rank.device for rank in run.ranks])
    return f"no hardware profile gives the {number_format} rate of {named}"


def _measured(
    run: Run, number_format: str | None, doctor: DoctorReport | None
) -> tuple[float, str] | str:
    if doctor is None:
        return f"no {DoctorReport.FILE} beside the cells: run scalewise doctor --out FOLDER"
    rates = []
    for device in (rank.device for rank in run.ranks):
        ranks = [
            r for r in doctor.ranks
            if r.rank < len(doctor.devices) and _same(doctor.devices[r.rank].device, device)
        ]  # fmt: skip
        gemms = [g for r in ranks for g in r.gemm if g.precision == number_format]
        if not gemms:
            return f"{DoctorReport.FILE} holds no {number_format} GEMM of {_names([device])}"
        rates.append(max(g.tflops for g in gemms))
    if not rates:
        return "the run's devices are not known"
    # Ranks wait for one another, so the mean over devices is what the whole could have done.
    return sum(rates) / len(rates), f"fastest {number_format} GEMM of scalewise doctor"


def _same(measured: DeviceInfo, used: DeviceInfo) -> bool:
    if used.uuid is not None:
        return measured.uuid == used.uuid
    kinds = ((one.kind, one.name, len(one.cores)) for one in (measured, used))
    return len(set(kinds)) == 1


def _names(devices: list[DeviceInfo]) -> str:
    return ", ".join(dict.fromkeys(d.name for d in devices)) or "an unknown device"
