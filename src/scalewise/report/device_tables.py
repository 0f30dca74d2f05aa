"""What each device and rank took: memory, energy, and the parts of a divided model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scalewise.analysis import (
    Analysis,
    Configuration,
    DeviceEnergy,
    DeviceUsage,
    Estimate,
    Run,
    estimate,
    factor,
    measure_pipeline,
    number,
)
from scalewise.records import cv_percent, cv_text, grade
from scalewise.report.scaling_tables import joules_per_1000, mean_of_runs
from scalewise.report.sections import (
    Column,
    Note,
    Section,
    Verbatim,
    item,
    lines,
    section,
    table,
    words,
)

_MOST_GPUS = 16
"""GPUs of a configuration with a row of their own."""

_MEMORY_NOTE = (
    "MiB are means over the samples inside a run, and ± is their standard deviation there, both "
    "means over runs; neither is a doubt over runs. *Balance* is the memory CV of the devices' "
    "means over runs, and says nothing of load. Where runs differ in which device holds more, it "
    "lies below the memory CV under *Load balance*, the mean of the runs' own CVs."
)

_ENERGY_NOTE = (
    "*J a step* and *J per 1,000 samples* are of the timed steps: the energy counter tells how "
    "much was used between two of its readings, power samples when. They are geometric means of "
    "runs, as in *Time and resources*; *power* and *run* are arithmetic means. *Run* goes from the "
    "first reading of the counter to the last, start-up and idle time included. Beside it is what "
    "integrating the power samples gives over the same time, and the difference. *Idle* is the "
    "power of the GPU before the first step."
)


@dataclass(frozen=True)
class DeviceMemory:
    """Memory of one device of a configuration, over its runs."""

    label: str
    mean_mib: float
    sd_mib: float | None
    """Over the samples inside a run, mean of the runs."""


def device_memory(config: Configuration) -> tuple[DeviceMemory, ...]:
    """Memory of each device in the order of ranks, geometric mean of runs; empty where a device is
    unknown."""
    runs = [sorted(run.usage.devices, key=_rank_order) for run in config.runs if run.usage]
    if not runs or len({len(devices) for devices in runs}) != 1:
        return ()
    found = []
    for devices in zip(*runs, strict=True):
        means = [d.memory_used_mib for d in devices if d.memory_used_mib is not None]
        spreads = [d.memory_sd_mib for d in devices if d.memory_sd_mib is not None]
        if not means:
            return ()
        sd = sum(spreads) / len(spreads) if spreads else None
        first = devices[0]
        label = first.label if first.label.startswith("GPU") else f"rank {first.device.index}"
        found.append(DeviceMemory(label, mean_of_runs(means).value, sd))
    return tuple(found)


def _rank_order(usage: DeviceUsage) -> tuple[int, int]:
    rank = usage.device.rank
    return (rank if rank is not None else usage.device.index, usage.device.index)


def devices(analysis: Analysis) -> Section:
    """Memory of each device, as ``gpu_summary.txt`` has it."""
    return section(
        "devices",
        "Devices",
        Verbatim(memory_summary(analysis).rstrip()),
        Note(_MEMORY_NOTE),
    )


def memory_summary(analysis: Analysis) -> str:
    """``GPU i: mean MiB (±sd)``, total and balance of every configuration.

    Empty where no device was sampled.
    """
    blocks = []
    for config in analysis.measured:
        memory = device_memory(config)
        if not memory:
            continue
        text = [f"{config.label} - memory per device:"]
        for device in memory:
            sd = "" if device.sd_mib is None else f" (±{device.sd_mib:.1f})"
            text.append(f"    {device.label}: {device.mean_mib:.1f} MiB{sd}")
        text.append(f"    Total:  {sum(d.mean_mib for d in memory):.1f} MiB")
        if len(memory) > 1:
            cv = _equals(cv_percent([d.mean_mib for d in memory]))
            text.append(f"    Balance: memory CV {cv}%, of the means over runs")
        arrival = config.estimate("arrival_cv_percent")
        if arrival:
            cv = _equals(arrival.value)
            text.append(f"    Load: arrival CV {cv}% ({grade(arrival.value)}), mean over runs")
        blocks.append("\n".join(text))
    return "\n\n".join(blocks) + ("\n" if blocks else "")


def _equals(cv: float) -> str:
    text = cv_text(cv)
    return text if text.startswith("<") else f"= {text}"


def energy(analysis: Analysis) -> Section:
    """A row a configuration, and below it one for each GPU; no row where nothing was measured."""
    columns = (
        words("configuration", "configuration", item(0)),
        Column("power_w", "power", "W", item(1), number),
        Column("step_j", "J a step", "", item(2), estimate),
        Column("samples_j", "J per 1,000 samples", "", item(3), estimate),
        Column("run_j", "run, counter", "J", item(4), number),
        Column("run_integrated_j", "run, integrated power", "J", item(5), number),
        Column("difference", "difference", "%", item(6), "{:+.1f}".format),
        Column("idle_w", "idle", "W", item(7), number),
        words("source", "from", item(8)),
    )
    rows: list[tuple[object, ...]] = []
    missing = []
    for config in analysis.measured:
        runs = _energies(config)
        if runs:
            parts = [part for _, devices in runs for part in devices]
            joules = (config.estimate("energy_j_per_step"), joules_per_1000(config))
            rows.append(_energy_row(config.label, parts, len(runs), *joules))
            rows += _gpu_rows(config, runs)
            missing += [f"{config.label}: GPU {part.device.index}: {reason}"
                        for part in parts for reason in part.missing]  # fmt: skip
    return section(
        "energy",
        "Energy",
        table("energy", columns, rows, _ENERGY_NOTE),
        lines(dict.fromkeys(missing)),
    )


def _energies(config: Configuration) -> list[tuple[Run, list[DeviceEnergy]]]:
    """The energy of each GPU of each run in which anything of it was measured."""
    found = []
    for run in config.runs:
        parts = [d.energy for d in run.usage.devices if d.energy] if run.usage else []
        if any(e.timed_j is not None or e.run_j is not None for e in parts):
            found.append((run, parts))
    return found


def _gpu_rows(
    config: Configuration, runs: Sequence[tuple[Run, list[DeviceEnergy]]]
) -> Iterator[tuple[object, ...]]:
    """A row for each of several GPUs, where all runs used as many and they are not too many."""
    count = len(runs[0][1])
    if not 1 < count <= _MOST_GPUS or any(len(parts) != count for _, parts in runs):
        return
    for i in range(count):
        mine = [(parts[i], run.throughput) for run, parts in runs]
        step_j = [_each(part, timed.steps if timed else None) for part, timed in mine]
        sample_j = [_each(part, timed.samples if timed else None) for part, timed in mine]
        yield _energy_row(
            f"{config.label}: GPU {mine[0][0].device.index}",
            [part for part, _ in mine],
            len(mine),
            _over_runs(step_j),
            _over_runs(sample_j, 1e3),
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
    return mean_of_runs(known).scaled(unit)


def _energy_row(
    label: str,
    parts: Sequence[DeviceEnergy],
    runs: int,
    step_j: Estimate | None,
    thousand_samples_j: Estimate | None,
) -> tuple[object, ...]:
    """``parts`` are those of all ``runs``: sums over the GPUs of a run, means over runs."""
    timed = _mean_of_runs([e.timed_j for e in parts], runs)
    seconds = sum(e.timed_s for e in parts) / len(parts)
    run_j = _mean_of_runs([e.run_j for e in parts], runs)
    integrated = _mean_of_runs([e.run_integrated_j for e in parts], runs)
    return (
        label,
        timed / seconds if timed is not None and seconds > 0 else None,
        step_j,
        thousand_samples_j,
        run_j,
        integrated,
        None if not run_j or integrated is None else 100 * (integrated / run_j - 1),
        _mean_of_runs([e.idle_w for e in parts], runs),
        " and ".join(sorted({e.source for e in parts if e.source})) or None,
    )


def _mean_of_runs(values: Sequence[float | None], runs: int) -> float | None:
    """The sum of all over the number of runs; None if one is missing."""
    known = [v for v in values if v is not None]
    return sum(known) / runs if known and len(known) == len(values) else None


def divided(analysis: Analysis) -> Section:
    """Idle time of pipelines, memory of every rank, and shares of a batch that are measured."""
    found = [
        text for c in analysis.measured for text in (*_idle(c), *_divided_memory(c), *_shares(c))
    ]
    return section("divided", "Models and batches divided over devices", lines(found))


def _shares(config: Configuration) -> Iterator[str]:
    """How fast each rank's device was found to be beside the fastest, and what it was given."""
    ranks = config.runs[0].ranks
    ratios = [rank.probed_ratio for rank in ranks if rank.probed_ratio is not None]
    if not ratios or len(ratios) < len(ranks):
        return
    each = ", ".join(f"{factor(v)} ({factor(low)}-{factor(high)})" for v, low, high in ratios)
    fed = " + ".join(str(rank.samples_fed // max(1, rank.steps_completed)) for rank in ranks)
    yield (
        f"{config.label}: batches of {fed} samples; speeds over the fastest device's, with the "
        f"intervals by which shares differ or not: {each}{_first_of(len(config.runs))}"
    )


def _idle(config: Configuration) -> Iterator[str]:
    found = [idle for run in config.runs if (idle := measure_pipeline(run.cell, run.anatomy))]
    if found:
        yield f"{config.label}: {found[0]}{_first_of(len(found))}"


def _divided_memory(config: Configuration) -> Iterator[str]:
    strategy = (config.cells[0].config or {}).get("strategy")
    kind = strategy.get("kind") if isinstance(strategy, dict) else None
    result = config.runs[0].cell.result
    if kind not in ("fsdp", "pipeline") or result is None:
        return
    parts, ranks = [], result.ranks
    states = [r.optimizer_state_bytes for r in ranks]
    if all(s is not None for s in states):
        parts.append(f"optimizer state {_rank_by_rank([(s or 0) / 2**20 for s in states])}")
    on_gpu = all(r.device.kind == "cuda" for r in ranks)
    peaks = [r.peak_allocated_mib if on_gpu else r.peak_rss_mib for r in ranks]
    if all(p is not None for p in peaks):
        name = "peak allocated" if on_gpu else "peak resident set"
        parts.append(f"{name} {_rank_by_rank([p or 0 for p in peaks])}")
    yield (
        f"{config.label}: {ranks[0].parameters_total:,} parameters in all; rank by rank "
        f"{', '.join(parts)}{_first_of(len(config.runs))}"
    )


def _rank_by_rank(mib: Sequence[float]) -> str:
    return " / ".join(f"{v:,.3g}" if v < 100 else f"{v:,.0f}" for v in mib) + " MiB"


def _first_of(count: int) -> str:
    return f" (first of {count} runs)" if count > 1 else ""
