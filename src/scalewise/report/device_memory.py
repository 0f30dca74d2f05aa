"""Memory of each device of a configuration, and the GPU monitor's consolidated text of it."""

from __future__ import annotations

from dataclasses import dataclass

from scalewise.analysis.balance import cv_percent, cv_text, grade
from scalewise.analysis.runs import Configuration
from scalewise.analysis.summary import Analysis
from scalewise.analysis.usage import DeviceUsage

NOTE = (
    "MiB are means over the samples inside a run, and ± is their standard deviation there, both "
    "means over runs; neither is a doubt over runs. *Balance* is the memory CV of the devices' "
    "means over runs, and says nothing of load; where runs differ in which device holds more, it "
    "lies below the memory CV under *Load balance*, the mean of the runs' own CVs."
)


@dataclass(frozen=True)
class DeviceMemory:
    """Memory of one device of a configuration, over its runs."""

    label: str
    mean_mib: float
    sd_mib: float | None
    """Over the samples inside a run, mean of the runs."""


def device_memory(config: Configuration) -> tuple[DeviceMemory, ...]:
    """Mean memory of each device in the order of ranks; empty where a device is unknown."""
    runs = [list(run.usage.devices) for run in config.runs if run.usage]
    if not runs or len({len(devices) for devices in runs}) != 1:
        return ()
    found = []
    for position in range(len(runs[0])):
        devices = [sorted(run, key=_order)[position] for run in runs]
        means = [d.memory_used_mib for d in devices if d.memory_used_mib is not None]
        spreads = [d.memory_sd_mib for d in devices if d.memory_sd_mib is not None]
        if not means:
            return ()
        sd = sum(spreads) / len(spreads) if spreads else None
        found.append(DeviceMemory(_device_label(devices[0]), sum(means) / len(means), sd))
    return tuple(found)


def summary_text(analysis: Analysis) -> str:
    """``GPU i: mean MiB (±sd)``, total and balance of every configuration, as that monitor has it.

    It writes MB for what NVML counts in MiB. Empty where no device was sampled.
    """
    blocks = []
    for config in analysis.measured:
        devices = device_memory(config)
        if not devices:
            continue
        lines = [f"{config.label} - memory per device:"]
        for device in devices:
            sd = "" if device.sd_mib is None else f" (±{device.sd_mib:.1f})"
            lines.append(f"    {device.label}: {device.mean_mib:.1f} MiB{sd}")
        lines.append(f"    Total:  {sum(d.mean_mib for d in devices):.1f} MiB")
        if len(devices) > 1:
            cv = cv_percent([d.mean_mib for d in devices])
            lines.append(f"    Balance: memory CV {_equals(cv)}%, of the means over runs")
        arrival = config.estimate("arrival_cv_percent")
        if arrival:
            cv = arrival.value
            lines.append(f"    Load: arrival CV {_equals(cv)}% ({grade(cv)}), mean over runs")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + ("\n" if blocks else "")


def _equals(cv: float) -> str:
    text = cv_text(cv)
    return text if text.startswith("<") else f"= {text}"


def _order(usage: DeviceUsage) -> tuple[int, int]:
    rank = usage.device.rank
    return (rank if rank is not None else usage.device.index, usage.device.index)


def _device_label(usage: DeviceUsage) -> str:
    return usage.label if usage.label.startswith("GPU") else f"rank {usage.device.index}"
