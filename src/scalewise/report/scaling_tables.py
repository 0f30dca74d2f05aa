"""Throughput, time, resources and anatomy of every configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from scalewise.analysis import (
    IDLE,
    PHASE_WORDS,
    Analysis,
    Configuration,
    Estimate,
    Pair,
    estimate,
    estimate_not_negative,
    estimate_positive,
    grouped,
    is_operation,
    is_timed,
    mean_anatomy,
    number,
    phase_word,
    ratio,
)
from scalewise.records import PHASES, RankSummary, cv_text
from scalewise.report.sections import (
    NAME,
    Column,
    Picture,
    Read,
    Section,
    Table,
    item,
    lines,
    section,
    table,
    words,
)

_SCALING_NOTE = (
    "Samples/s are global, over the time of the slowest rank, without warm-up: the geometric mean "
    "of runs. ± is half the width of a 95 % interval over runs (Student's t on logarithms); "
    "brackets hold its ends where its halves differ. A ratio is taken within each round, then over "
    "rounds (Student's t of the pairs' logarithms); of runs that share no round it is Welch's. "
    "Each line is at 95 % on its own: of 20 such lines one may be wrong. "
    "Runs that are *equal* may owe that to a shared seed, and bound nothing. *Beneficial* needs a "
    "lower bound of the speedup over 1.1 and an efficiency of at least 0.5; a verdict needs its "
    "whole interval. The *study's label* follows the published study and looks at the point "
    "alone: beneficial from 1.1, marginal from 0.95, else single."
)

_ANATOMY_NOTE = (
    "Exposed communication runs from the last gradient bucket ready to the end of backward, "
    "waiting for the slowest rank included. Host and device clocks are never added together. These "
    "are arithmetic means over runs and ranks, whose parts add up to the step. *step (ms)* above "
    "is of the slowest rank, and the geometric mean of runs."
)

_ALLOCATOR_NOTE = (
    "*Allocated* is what tensors held at most, *reserved* what PyTorch's allocator had taken from "
    "the driver for them. A retry is an allocation for which its cache had to be given back first. "
    "All are of the rank that needed most. *Device-wide* is NVML's mean over devices, with the "
    "CUDA context, NCCL's buffers and other processes: it is no sum of the others."
)


def scaling(analysis: Analysis) -> Section:
    """Throughput, speedup, efficiency and verdict of every configuration that ran."""
    shared = _in_every_row(analysis, _batch) and not any(map(_is_weak, analysis.measured))

    def pair(figure: str) -> Read:
        return lambda c: getattr(analysis.valid_pair(c), figure, None)

    columns = (
        NAME,
        Column("runs", "runs", "", lambda c: f"{len(c.runs)} of {len(c.cells)}"),
        Column(
            "batch", "batch", "global", lambda c: None if shared else c.global_batch, "{:,}".format
        ),
        Column("samples_per_s", "samples/s", "global", of("global_samples_per_s"), estimate),
        Column("speedup", "speedup", "", pair("speedup"), ratio),
        Column("efficiency", "efficiency", "", pair("efficiency"), ratio),
        words("verdict", "verdict", lambda c: verdict(analysis, c)),
        words("study_label", "study's label", pair("seed_label")),
    )
    return section(
        "scaling",
        "Scaling",
        lines([*same_in_every_row(analysis), *_later_starts(analysis)], "faint"),
        table("scaling", columns, analysis.measured, _SCALING_NOTE),
        Picture("throughput.png", "Throughput with 95 % intervals over runs"),
        Picture("speedup_efficiency.png", "Speedup and efficiency with 95 % intervals"),
    )


def of(metric: str) -> Read:
    """Reads an estimate over the runs of a configuration."""
    return lambda config: config.estimate(metric)


def run_speedups(pair: Pair) -> list[float]:
    """Of each round that both sides ran in; without rounds, of each run over the mean of one."""
    above, below = (side.rounds("global_samples_per_s") for side in (pair.multi, pair.single))
    if isinstance(above, Mapping) and isinstance(below, Mapping):
        return [above[at] / below[at] for at in sorted(above.keys() & below.keys())]
    mean = pair.single.estimate("global_samples_per_s")
    return [one / mean.value for one in pair.multi.values("global_samples_per_s")] if mean else []


def verdict(analysis: Analysis, config: Configuration) -> str | None:
    """The word in every table and file; None where there is nothing to judge."""
    if not is_timed(config.cells[0].config):
        return None
    if config.config_id in analysis.invalid:
        return "invalid"
    pair = analysis.pair(config)
    if pair is not None:
        return pair.judgement.verdict
    if not config.runs:
        return None
    if config.devices == 1:
        return "baseline"
    return "not comparable" if analysis.refusal(config) else None


def same_in_every_row(analysis: Analysis) -> list[str]:
    """A line of what all rows share, and a line a model of what differs between models alone."""
    words = [_in_every_row(analysis, fact) for fact in _FACTS]
    shared = ", ".join(word for word in words if word)
    return [*([f"the same in every row: {shared}"] if shared else []), *_by_model(analysis)]


def _by_model(analysis: Analysis) -> Iterator[str]:
    """What each model ran with, of what is the same in all its rows and no other model's."""
    leaves: dict[str, dict[str, set[str]]] = {}
    for config in analysis.measured:
        own = leaves.setdefault(config.name("model") or config.label, {})
        for name, word in config.leaves.items():
            own.setdefault(name, set()).add(word)
    several = {name for own in leaves.values() for name, found in own.items() if len(found) > 1}
    for model, own in leaves.items():
        told = {name: found for name, found in own.items() if name not in several}
        if len(leaves) > 1 and told:
            words = (f"{n.removesuffix('.name')}={min(found)}" for n, found in told.items())
            yield f"{model}: {', '.join(words)}"


_MOST_STARTS = 3
"""Runs of a configuration whose first timed steps are named one by one."""


def _later_starts(analysis: Analysis) -> Iterator[str]:
    """Each run of which more than ``warmup_steps`` is left out; many share a line."""
    for config in analysis.measured:
        runs = [(run.cell.planned.name, run.cell.warm_up) for run in config.runs]
        later = [(name, found) for name, found in runs if found is not None and found.is_later]
        if len(later) <= _MOST_STARTS:
            yield from (f"{name} is {found}" for name, found in later)
            continue
        steps = sorted(found.timed_from for _, found in later)
        yield (
            f"{config.label}: {len(later)} of {len(runs)} runs are timed from steps {steps[0]} to "
            f"{steps[-1]} ({later[0][1].rule}), not from {later[0][1].least}"
        )


Fact = Callable[[Configuration], str | None]


def _in_every_row(analysis: Analysis, fact: Fact) -> str | None:
    found = {fact(config) for config in analysis.measured}
    return found.pop() if len(found) == 1 else None


def precision_word(config: Configuration) -> str | None:
    """The precision of training; of an operation, which has none, the data's number format."""
    plain = config.cells[0].config or {}
    if not is_operation(plain):
        return config.name("precision")
    dataset = plain.get("dataset")
    return str(dataset.get("dtype", "fp32")) if isinstance(dataset, Mapping) else None


def _precision(config: Configuration) -> str | None:
    word = precision_word(config)
    return None if word is None else f"precision={word}"


def _group(group: str) -> Fact:
    return lambda config: None if config.name(group) is None else f"{group}={config.name(group)}"


def _identity(key: str, words: str) -> Fact:
    def fact(config: Configuration) -> str | None:
        value = config.identity.get(key)
        return None if value is None else words.format(value)

    return fact


def _of_training(fact: Fact) -> Fact:
    return lambda config: None if is_operation(config.cells[0].config) else fact(config)


def _forward_only(config: Configuration) -> str | None:
    return "forward only" if is_operation(config.cells[0].config) else None


def _is_weak(config: Configuration) -> bool:
    return config.identity.get("scaling") == "weak"


def _batch(config: Configuration) -> str | None:
    where = "on each device" if _is_weak(config) else "of all devices"
    return _identity("batch", f"{{}} samples a step {where}")(config)


def _steps(config: Configuration) -> str | None:
    keys = ("max_steps", "measure.min_time_s", "warmup_steps")
    steps, least_s, warmup = (config.identity.get(key) for key in keys)
    if steps in (None, "None"):
        if least_s in (None, "None"):
            lengths = {rank.length.min_time_s for rank in config.rank_summaries if rank.length}
            least_s = f"{lengths.pop():g}" if len(lengths) == 1 else None
        return None if least_s is None else f"{least_s} s of timed steps or more"
    return f"{steps} steps" + ("" if warmup is None else f" ({warmup} to warm up)")


_FACTS: tuple[Fact, ...] = (
    _group("dataset"),
    _precision,
    _group("execution"),
    _forward_only,
    _of_training(_group("optimizer")),
    _of_training(_identity("optimizer.lr", "lr={}")),
    _batch,
    _steps,
    _identity("seed", "seed={}"),
    _identity("device_model", "on {}"),
)


def resources(analysis: Analysis) -> Section:
    """Time per step, memory, utilisation, balance, loss and energy."""
    return section(
        "resources",
        "Time and resources",
        _resource_table(analysis),
        _allocator_table(analysis),
    )


def _resource_table(analysis: Analysis) -> Table:
    configs = analysis.measured
    cpu, gpu = any(c.is_cpu for c in configs), any(not c.is_cpu for c in configs)
    peaks = {(True, False): "peak RSS per rank", (False, True): "peak allocated per GPU"}
    names = {name for config in configs if (name := loss_name(config))}
    reached = f"{min(names)} reached" if len(names) == 1 else "loss reached"
    several, state = len(names) != 1, _optimizers_are_compared(configs)
    used = "mean RSS per rank" if cpu and not gpu else "used per device"
    busy = "CPU per rank" if cpu and not gpu else "utilisation per device"
    columns = (
        NAME,
        Column("step_ms", "step", "ms", of("step_time_ms"), estimate),
        Column("percentiles", "p50 / p99", "ms, n steps", _percentiles),
        Column("peak", peaks.get((cpu, gpu), "peak memory per device"), "MiB",
               of("peak_memory_per_device_mib"), mean_number),
        Column("used", used, "MiB", of("memory_used_per_device_mib"), mean_number),
        Column("utilization", busy, "%, n readings",
               lambda c: counted(c, "utilization_per_device_percent", mean_number)),
        Column("arrival_cv", "arrival CV", "%", of("arrival_cv_percent"),
               lambda figure: cv_text(figure.value)),
        Column("accuracy", "val_accuracy reached", "", of("val_accuracy_reached"), estimate),
        Column("loss", reached, "", lambda c: _loss(c, several=several)),
        Column("dropped", "points outside the grid", "a batch of a rank",
               of("points_dropped_per_batch"), mean_number),
        Column("energy", "energy", "J per 1,000 samples", joules_per_1000, estimate),
        Column("optimizer_state", "optimizer state per rank", "MiB",
               of("optimizer_memory_mib") if state else lambda _: None, mean_number),
    )  # fmt: skip
    return table("resources", columns, configs)


def joules_per_1000(config: Configuration) -> Estimate | None:
    """Energy of 1,000 samples."""
    joules = config.estimate("energy_j_per_million_samples")
    return joules and joules.scaled(1e-3)


def mean_number(figure: Estimate) -> str:
    """The mean without its interval."""
    return number(figure.value)


def counted(config: Configuration, metric: str, text: Callable[[Estimate], str]) -> str | None:
    """``94.2 (n=12)`` with the number of utilisation readings."""
    figure = config.estimate(metric)
    readings = sum(run.utilization_readings for run in config.runs)
    return None if figure is None else f"{text(figure)} (n={readings})"


def loss_name(config: Configuration) -> str | None:
    """The loss that was reached: of training or of validation."""
    return " / ".join(dict.fromkeys(run.loss.name for run in config.runs if run.loss)) or None


def _loss(config: Configuration, *, several: bool) -> str | None:
    """With the loss's name where the rows share none."""
    figure, name = config.estimate("loss_reached"), loss_name(config)
    if figure is None or name is None or not several:
        return None if figure is None else estimate(figure)
    return f"{estimate(figure)} ({name.removesuffix('_loss')})"


def _percentiles(config: Configuration) -> str | None:
    """``1.62 / 2.76 (n=3x100)``: means of 3 runs of 100 steps; no p99 unless every run has one."""
    times = [run.throughput.step_time_ms for run in config.runs if run.throughput]
    if not times:
        return None
    steps = sorted({t.n for t in times})
    each = f"{steps[0]}" if len(steps) == 1 else f"{steps[0]}-{steps[-1]}"
    tails = [t.p99 for t in times if t.p99 is not None]
    p50 = mean_of_runs([t.p50 for t in times]).value
    p99 = mean_of_runs(tails).value if len(tails) == len(times) else None
    return f"{number(p50)} / {number(p99)} (n={len(times)}x{each})"


def mean_of_runs(values: Sequence[float]) -> Estimate:
    """Geometric, as all means of positive runs; arithmetic where one is 0."""
    return (estimate_positive if min(values) > 0 else estimate_not_negative)(values)


def _optimizers_are_compared(configs: Sequence[Configuration]) -> bool:
    """Whether some workload was trained with several optimizers.

    With one alone its state is part of the memory; among several it is the question.
    """
    return any(
        len({one.name("optimizer") for one in same}) > 1
        for same in grouped(configs, lambda config: config.workload).values()
    )


def _allocator_table(analysis: Analysis) -> Table:
    """Memory of each run's largest rank, by the CUDA allocator and by the driver."""

    def reserved(config: Configuration) -> float | None:
        most = _largest(config, lambda r: r.peak_reserved_mib)
        return mean_of_runs(most).value if most else None

    def retries(config: Configuration) -> float | None:
        return max(_largest(config, lambda r: r.allocation_retries), default=None)

    columns = (
        NAME,
        Column("allocated", "peak allocated", "MiB", of("peak_memory_per_device_mib"), mean_number),
        Column("reserved", "peak reserved", "MiB", reserved, number),
        Column("retries", "retries", "most", retries, "{:.0f}".format),
        Column(
            "used", "device-wide used", "MiB, mean", of("memory_used_per_device_mib"), mean_number
        ),
    )
    on_gpus = [config for config in analysis.measured if not config.is_cpu]
    return table("allocator", columns, on_gpus, _ALLOCATOR_NOTE, where="page")


def _largest(config: Configuration, read: Callable[[RankSummary], float | None]) -> list[float]:
    """The largest over the ranks of each run in which a rank has it."""
    results = [run.cell.result for run in config.runs if run.cell.result]
    known = [[v for rank in result.ranks if (v := read(rank)) is not None] for result in results]
    return [max(values) for values in known if values]


def anatomy(analysis: Analysis) -> Section:
    """Mean ms of each phase over runs and ranks."""

    def of_phase(name: str) -> Column:
        return Column(name, name, "", lambda row: row[2].get(name), number)

    columns = (
        words("configuration", "configuration", item(0)),
        words("timeline", "timeline", item(1)),
        *(of_phase(PHASE_WORDS[phase]) for phase in PHASES),
        of_phase(IDLE),
        Column("step", "step", "", item(3), number),
    )
    rows = []
    for config in analysis.measured:
        found = mean_anatomy(config)
        if found is not None:
            named = {phase_word(config, phase): ms for phase, ms in found[0].items()}
            rows.append((config.label, found[2], named, found[1]))
    return section(
        "anatomy",
        "Anatomy of a step (mean ms)",
        table("anatomy", columns, rows, _ANATOMY_NOTE),
        Picture("step_anatomy.png", "Where the time of a step goes"),
    )
