"""Energy in a report: per step, per sample, per run and GPU, with the check against power."""

from __future__ import annotations

from collections.abc import Sequence

from scalewise.analysis.energy import DeviceEnergy
from scalewise.analysis.figures import estimate, number
from scalewise.analysis.runs import Configuration
from scalewise.analysis.summary import Analysis
from scalewise.report.table import Table

_MOST_GPUS = 16
"""GPUs of a configuration with a row of their own."""

HOW_TO_READ = (
    "*J a step* and *J per 1,000 samples* are of the timed steps: the energy counter tells how "
    "much was used between two of its readings, power samples when. *Run* goes from the first "
    "reading of the counter to the last, start-up and idle time included; beside it is what "
    "integrating the power samples gives over the same time, and the difference. *Idle* is the "
    "power of the GPU before the first step."
)


def energy_table(analysis: Analysis) -> Table:
    """A row a configuration, and below it one for each GPU; no row where nothing was measured."""
    headers = (
        "configuration", "power (W)", "J a step", "J per 1,000 samples", "run, counter (J)",
        "run, integrated power (J)", "difference (%)", "idle (W)", "from",
    )  # fmt: skip
    rows: list[tuple[str, ...]] = []
    for config in analysis.measured:
        runs = energies(config)
        if runs:
            everything = [part for run in runs for part in run]
            rows.append(_row(config.label, config, everything, len(runs), whole=True))
            count = len(runs[0])
            if 1 < count <= _MOST_GPUS and all(len(run) == count for run in runs):
                for i in range(count):
                    label = f"{config.label}: GPU {runs[0][i].device.index}"
                    one = [run[i] for run in runs]
                    rows.append(_row(label, config, one, len(runs), whole=False))
    numeric = frozenset(range(1, len(headers) - 1))
    return Table(headers, tuple(rows), numeric).without_empty_columns()


def energies(config: Configuration) -> list[list[DeviceEnergy]]:
    """For each run the energy of each of its GPUs, for those in which anything was measured."""
    found = []
    for run in config.runs:
        devices = [d.energy for d in run.usage.devices if d.energy] if run.usage else []
        if any(e.timed_j is not None or e.run_j is not None for e in devices):
            found.append(devices)
    return found


def missing(analysis: Analysis) -> list[str]:
    """What of the energy could not be measured, one line a configuration and reason."""
    lines: dict[str, None] = {}
    for config in analysis.measured:
        for devices in energies(config):
            for energy in devices:
                for reason in energy.missing:
                    lines[f"{config.label}: GPU {energy.device.index}: {reason}"] = None
    return list(lines)


def _row(
    label: str,
    config: Configuration,
    parts: Sequence[DeviceEnergy],
    runs: int,
    *,
    whole: bool,
) -> tuple[str, ...]:
    """Sums over the GPUs of a run, means over runs; unless ``whole``, ``parts`` are one GPU's."""
    timed = _mean_of_runs([e.timed_j for e in parts], runs)
    seconds = sum(e.timed_s for e in parts) / len(parts)
    counted = _mean_of_runs([e.run_j for e in parts], runs)
    integrated = _mean_of_runs([e.run_integrated_j for e in parts], runs)
    difference = None if not counted or integrated is None else 100 * (integrated / counted - 1)
    step_j, sample_j = _shares(config, timed)
    sources = {e.source for e in parts if e.source}
    return (
        label,
        number(timed / seconds if timed is not None and seconds > 0 else None),
        estimate(config.estimate("joules_per_step")) if whole else number(step_j),
        number(None if sample_j is None else 1000 * sample_j),
        number(counted),
        number(integrated),
        "-" if difference is None else f"{difference:+.1f}",
        number(_mean_of_runs([e.idle_w for e in parts], runs)),
        " and ".join(sorted(sources)) or "-",
    )


def _shares(config: Configuration, timed_j: float | None) -> tuple[float | None, float | None]:
    """Joules of a step and of a sample of all ranks, given those of the timed steps of a run."""
    throughput = next((run.throughput for run in config.runs if run.throughput), None)
    if timed_j is None or throughput is None:
        return None, None
    return timed_j / throughput.steps, timed_j / throughput.samples


def _mean_of_runs(values: Sequence[float | None], runs: int) -> float | None:
    """The sum of all over the number of runs; None if one is missing."""
    known = [v for v in values if v is not None]
    return sum(known) / runs if known and len(known) == len(values) else None
