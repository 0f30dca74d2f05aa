"""Faults of records: what is left in a cell's folder as if it had been measured."""

from __future__ import annotations

from faults import FaultConfig
from scalewise.records import (
    CellFolder,
    DeviceSample,
    DeviceSeriesWriter,
    ImportedResult,
    SampledDevice,
    StepSeries,
    read_steps,
    save_record,
)

TOP_MHZ = 1980.0
"""The highest SM clock of an H200."""
REPLAYED_AS = "replay"
"""The host in whose name a replayed series stands."""
_SAMPLES = 20


def leave_records(fault: FaultConfig, folder: CellFolder, world_size: int) -> None:
    """Replay or import in the records of a cell that is done, unless that is done already."""
    if fault.kind not in ("throttled_replay", "per_replica_import"):
        return
    if folder.device_series_path(REPLAYED_AS).exists():
        return
    steps = read_steps(folder.steps_path(0), 0).timed()
    if fault.kind == "throttled_replay":
        replay_throttled(folder, steps, world_size, fault.mhz)
    else:
        save_record(folder.path, published_per_replica(steps, world_size, fault.digits))


def replay_throttled(folder: CellFolder, steps: StepSeries, world_size: int, mhz: float) -> None:
    """A series of GPUs that reached their top clock once and were then held back by heat.

    It is composed, in the form in which NVML's readings are recorded, and laid over the time of
    the timed steps.
    """
    starts = (steps.rows["start_ns"] + steps.epoch_offset_ns) / 1e9
    begin, end = float(starts[0]), float(starts[-1])
    devices = tuple(SampledDevice(f"GPU-{r}", r, "replayed GPU", r) for r in range(world_size))
    interval = (end - begin) / (_SAMPLES + 1)
    path = folder.device_series_path(REPLAYED_AS)
    writer = DeviceSeriesWriter(path, REPLAYED_AS, "nvml", interval, devices)
    cool = {d.id: DeviceSample(d.id, sm_clock_mhz=TOP_MHZ, throttle_reasons=()) for d in devices}
    hot = {
        d.id: DeviceSample(d.id, sm_clock_mhz=mhz, throttle_reasons=("software thermal slowdown",))
        for d in devices
    }
    writer.append(begin - 1.0, cool, None)
    for i in range(1, _SAMPLES + 1):
        writer.append(begin + i * interval, hot, None)
    writer.close()


def published_per_replica(steps: StepSeries, world_size: int, digits: int) -> ImportedResult:
    """This run as it would stand in a table whose throughput counts one replica's batch.

    Figures are rounded to ``digits`` significant digits, as published ones are.
    """
    per_rank = float(steps.rows["samples"].mean())
    step_ms = float(steps.column("step").mean())
    return ImportedResult(
        devices=world_size,
        global_batch_size=round(per_rank * world_size),
        step_time_ms=_rounded(step_ms, digits),
        samples_per_s=_rounded(per_rank / step_ms * 1e3, digits),
    )


def _rounded(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")
