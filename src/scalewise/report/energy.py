"""Energy in a report: per step, per sample, per run and GPU, with the check against power."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scalewise.analysis.energy import DeviceEnergy
from scalewise.analysis.figures import MISSING, estimate, number
from scalewise.analysis.run import Run
from scalewise.analysis.runs import Configuration
from scalewise.analysis.statistics import Estimate, estimate_not_negative, estimate_positive
from scalewise.analysis.summary import Analysis
from scalewise.report.table import Table

_MOST_GPUS = 16
"""GPUs of a configuration with a row of their own."""
_THOUSAND, _MILLION = 1e3, 1e6
Row = tuple[str, ...]

HOW_TO_READ = (
    "*J a step* and *J per 1,000 samples* are of the timed steps: the energy counter tells how "
    "much was used between two of its readings, power samples when. They are geometric means of "
    "runs, as in *Time and resources*, so that those of single GPUs add up to the row above them "
    "in each run, and in the mean nearly; *power* and *run* are arithmetic means. *Run* goes from "
    "the first reading of the counter to the last, start-up and idle time included; beside it is "
    "what integrating the power samples gives over the same time, and the difference. *Idle* is "
    "the power of the GPU before the first step."
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
            rows.append(_whole_row(config, runs))
            rows += _gpu_rows(config, runs)
    numeric = frozenset(range(1, len(headers) - 1))
    return Table(headers, tuple(rows), numeric).without_empty_columns()


def energies(config: Configuration) -> list[tuple[Run, list[DeviceEnergy]]]:
    """The energy of each GPU of each run in which anything of it was measured."""
    found = []
    for run in config.runs:
        devices = [d.energy for d in run.usage.devices if d.energy] if run.usage else []
        if any(e.timed_j is not None or e.run_j is not None for e in devices):
            found.append((run, devices))
    return found


def missing(analysis: Analysis) -> list[str]:
    """What of the energy could not be measured, one line a configuration and reason."""
    lines: dict[str, None] = {}
    for config in analysis.measured:
        for _, devices in energies(config):
            for energy in devices:
                for reason in energy.missing:
                    lines[f"{config.label}: GPU {energy.device.index}: {reason}"] = None
    return list(lines)


def _whole_row(config: Configuration, runs: Sequence[tuple[Run, list[DeviceEnergy]]]) -> Row:
    """Sums over the GPUs of a run. Joules a step and a sample as every other table has them."""
    joules = config.estimate("joules_per_million_samples")
    return _row(
        config.label,
        [part for _, devices in runs for part in devices],
        len(runs),
        config.estimate("joules_per_step"),
        joules and joules.scaled(_THOUSAND / _MILLION),
    )


def _gpu_rows(
    config: Configuration, runs: Sequence[tuple[Run, list[DeviceEnergy]]]
) -> Iterator[Row]:
    """A row for each of several GPUs, where all runs used as many and they are not too many."""
    count = len(runs[0][1])
    if not 1 < count <= _MOST_GPUS or any(len(devices) != count for _, devices in runs):
        return
    for i in range(count):
        mine = [(devices[i], run.throughput) for run, devices in runs]
        yield _row(
            f"{config.label}: GPU {mine[0][0].device.index}",
            [part for part, _ in mine],
            len(mine),
            _over_runs([_each(part, timed.steps if timed else None) for part, timed in mine]),
            _over_runs(
                [_each(part, timed.samples if timed else None) for part, timed in mine], _THOUSAND
            ),
        )


def _each(part: DeviceEnergy, count: int | None) -> float | None:
    """Joules of one GPU in the timed steps, over their number or that of all ranks' samples."""
    return None if part.timed_j is None or count is None else part.timed_j / count


def _over_runs(values: Sequence[float | None], unit: float = 1.0) -> Estimate | None:
    """Mean of all, times ``unit``; None if one is missing. Geometric, unless a counter never
    moved, as for a whole configuration."""
    known = [v for v in values if v is not None]
    if len(known) < len(values):
        return None
    mean = estimate_positive if min(known) > 0 else estimate_not_negative
    return mean(known).scaled(unit)


def _row(
    label: str,
    parts: Sequence[DeviceEnergy],
    runs: int,
    step_j: Estimate | None,
    thousand_samples_j: Estimate | None,
) -> Row:
    """``parts`` are those of all ``runs``: sums over the GPUs of a run, means over runs."""
    timed = _mean_of_runs([e.timed_j for e in parts], runs)
    seconds = sum(e.timed_s for e in parts) / len(parts)
    counted = _mean_of_runs([e.run_j for e in parts], runs)
    integrated = _mean_of_runs([e.run_integrated_j for e in parts], runs)
    difference = None if not counted or integrated is None else 100 * (integrated / counted - 1)
    sources = {e.source for e in parts if e.source}
    return (
        label,
        number(timed / seconds if timed is not None and seconds > 0 else None),
        estimate(step_j),
        estimate(thousand_samples_j),
        number(counted),
        number(integrated),
        MISSING if difference is None else f"{difference:+.1f}",
        number(_mean_of_runs([e.idle_w for e in parts], runs)),
        " and ".join(sorted(sources)) or MISSING,
    )


def _mean_of_runs(values: Sequence[float | None], runs: int) -> float | None:
    """The sum of all over the number of runs; None if one is missing."""
    known = [v for v in values if v is not None]
    return sum(known) / runs if known and len(known) == len(values) else None
