"""Throughput, time, resources, anatomy and cost of configurations; how many devices to take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from operator import itemgetter

from scalewise.analysis import (
    IDLE,
    PHASE_WORDS,
    Analysis,
    Configuration,
    Cost,
    LadderRow,
    accuracy_of,
    devices_to_take,
    fastest_of_each,
    grouped,
    measured_rows,
    times,
)
from scalewise.host import plural
from scalewise.records import PHASES
from scalewise.report.sections import (
    NOTES,
    Column,
    Picture,
    Section,
    explained,
    figure_columns,
    lines,
    section,
    table,
    words,
)


def scalings(analysis: Analysis) -> list[Section]:
    return [cost(analysis), scaling(analysis), resources(analysis), anatomy(analysis)]


def scaling(analysis: Analysis) -> Section:
    """Throughput, speedup, efficiency and verdict of every configuration that ran."""
    batches = {config.identity.get("batch") for config in analysis.measured}
    shared = len(batches) == 1 and not any(map(_is_weak, analysis.measured))
    name, *figures = figure_columns("scaling")
    columns = (
        name,
        Column("runs", "runs", "", lambda r: f"{len(r.config.runs)} of {len(r.config.cells)}"),
        Column("batch", "batch", "global", lambda r: None if shared else r.config.global_batch),
        *figures,
    )
    return section(
        "scaling",
        "Scaling",
        lines(same_in_every_row(analysis), "faint"),
        table("scaling", columns, measured_rows(analysis), NOTES["scaling"]),
        Picture("throughput.png", "Throughput with 95 % intervals over runs"),
        Picture("speedup_efficiency.png", "Speedup and efficiency with 95 % intervals"),
    )


def same_in_every_row(analysis: Analysis) -> list[str]:
    """A line of what all rows share, and a line a model of what differs between models alone."""
    facts = zip(*map(_facts, analysis.measured), strict=True)
    shared = ", ".join(each[0] for each in facts if each[0] and len(set(each)) == 1)
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


def _facts(config: Configuration) -> list[str]:
    """What a row ran with; empty words for what it has not, and what nobody knows of a script."""
    words, identity = {}, config.identity
    for group in ("dataset", "precision", "execution", "operation", "optimizer"):
        name = config.precision if group == "precision" else config.name(group)
        words[group] = f"{group}={name}" if name else ""
    words["operation"] = "forward only" * config.is_operation
    words["lr"] = f"lr={identity['optimizer.lr']}" if "optimizer.lr" in identity else ""
    where = "on each device" if _is_weak(config) else "of all devices"
    words["batch"] = f"{identity['batch']} samples a step {where}" if "batch" in identity else ""
    words["steps"] = _steps(config) or ""
    words["seed"] = f"seed={','.join(map(str, config.seeds))}" if config.seeds else ""
    words["device"] = f"on {identity['device_model']}" if "device_model" in identity else ""
    if config.started_by == "script":
        words |= dict.fromkeys(("dataset", "precision", "execution", "seed"), "")
    if config.is_operation:
        words |= dict.fromkeys(("optimizer", "lr"), "")
    return list(words.values())


def _is_weak(config: Configuration) -> bool:
    return config.identity.get("scaling") == "weak"


def _steps(config: Configuration) -> str | None:
    keys = ("max_steps", "measure.min_time_s", "warmup_steps")
    steps, least_s, warmup = (config.identity.get(key) for key in keys)
    if steps in (None, "None"):
        if least_s in (None, "None"):
            lengths = {rank.length.min_time_s for rank in config.rank_summaries if rank.length}
            least_s = f"{lengths.pop():g}" if len(lengths) == 1 else None
        return None if least_s is None else f"{least_s} s of timed steps asked for"
    return f"{steps} steps" + ("" if warmup is None else f" ({warmup} to warm up)")


def resources(analysis: Analysis) -> Section:
    rows = measured_rows(analysis)
    columns = {column.key: column for column in figure_columns("resources")}
    names = {name for row in rows if (name := columns["loss_name"].read(row))}
    if len(names) == 1:
        del columns["loss_name"]
    logged = {one[0] for row in rows for run in row.config.runs if (one := accuracy_of(run))}
    for key, found in (("loss_reached", names), ("val_accuracy_reached", logged)):
        if len(found) == 1:
            columns[key] = replace(columns[key], heading=f"{min(found)} reached")
    # With one alone its state is part of the memory; among several it is the question.
    same_work = grouped(analysis.measured, lambda config: config.workload).values()
    if all(len({one.name("optimizer") for one in same}) < 2 for same in same_work):
        del columns["optimizer_memory_mib"]
    energy = columns["energy_j_per_million_samples"]
    columns[energy.key] = replace(
        energy,
        unit="J per 1,000 samples",
        read=lambda row: (joules := energy.read(row)) and joules.scaled(1e-3),
    )
    note = explained("resources", {"cpu" if c.is_cpu else "gpu" for c in analysis.measured})
    made = table("resources", [*columns.values()], rows, note)
    return section("resources", "Time and resources", made)


def anatomy(analysis: Analysis) -> Section:
    def of_phase(name: str) -> Column:
        return Column(name, name, "", lambda row: row[2].get(name))

    columns = (
        words("configuration", "configuration", itemgetter(0)),
        words("timeline", "timeline", itemgetter(1)),
        *(of_phase(PHASE_WORDS[phase]) for phase in PHASES),
        of_phase(IDLE),
        Column("step", "step", "", itemgetter(3)),
    )
    rows = []
    for config in analysis.measured:
        if found := config.anatomy:
            named = {config.phase_word(phase): ms for phase, ms in found.phases_ms.items()}
            rows.append((config.label, found.timeline, named, found.step_ms))
    return section(
        "anatomy",
        "Anatomy of a step (mean ms)",
        table("anatomy", columns, rows, NOTES["anatomy"]),
        Picture("step_anatomy.png", "Where the time of a step goes"),
    )


_SAID_BY_THE_SPEEDUP = 2
"""Devices up to which a speedup over one is all there is to say."""


def cost(analysis: Analysis) -> Section:
    """Cost of a sample over that on one device, and of a million in USD where prices are known."""
    made = table("cost", figure_columns("cost"), measured_rows(analysis))
    keys = {column.key for column in made.columns}
    shown = replace(made, rows=made.rows if len(keys) > 1 else (), note=explained("cost", keys))
    return section("cost", "Cost", lines(price_lines(analysis)), shown)


def price_lines(analysis: Analysis, lacking: str = "no cost in USD") -> list[str]:
    """Each price with its source and date, and each reason why there is no cost, after ``lacking``.

    A line names its configurations unless it holds for all of them.
    """
    labels: dict[str, list[str]] = {}
    for config in analysis.measured:
        if found := analysis.costs.get(config.config_id):
            missing = f"{lacking}: {found.missing}"
            line = missing if found.missing else f"price: {_price_words(found)}"
            labels.setdefault(line, []).append(config.label)
    if len(labels) == 1:
        return list(labels)
    return [f"{', '.join(names)}: {line}" for line, names in labels.items()]


def _price_words(found: Cost) -> str:
    price = found.price
    if price is None:
        return "no known price"
    cents = f"{price.usd_per_hour:.2f}"
    # As it was read: who multiplies it out is to get what stands beside it.
    usd = cents if float(cents) == price.usd_per_hour else f"{price.usd_per_hour:.10g}"
    return f"{usd} USD per device and hour ({price.source}, {price.date})"


def lines_of_devices(analysis: Analysis) -> Iterator[str]:
    """How many devices to take, where three numbers or more ran, and why not more."""
    for ladder in analysis.ladders:
        if len(fastest_of_each(ladder)) < 3 and ladder[-1].devices <= _SAID_BY_THE_SPEEDUP:
            continue
        taken, config = devices_to_take(ladder), ladder[-1].config
        parts = (config.name("model"), config.name("strategy"), *config.swept)
        name = " ".join(part for part in parts if part)
        figure = f", {times(taken.pair.speedup)}" if taken.pair else ""
        count = f"{taken.devices} {plural(taken.devices, 'device')}"
        more = [rung for rung in fastest_of_each(ladder) if rung.devices > taken.devices]
        why = f"; {why_not(more[0])}" if more else ""
        still = any(rung.pair and rung.pair.verdict == "undecided" for rung in more)
        yield f"{name}: take {count}{' for now' if still else ''}{figure}{why}."


def why_not(rung: LadderRow) -> str:
    """``8 do not pay: 3.90x where 4.00x is wanted of 8``."""
    assert rung.pair is not None
    verdict, short = rung.pair.verdict, rung.pair.judgement.short
    if verdict == "does not pay":
        return f"{rung.devices} do not pay: {short}"
    if verdict == "pays" and rung.gain is not None:
        return f"{rung.devices} are not shown to beat {rung.smaller}"
    return f"{rung.devices} are {verdict}"
