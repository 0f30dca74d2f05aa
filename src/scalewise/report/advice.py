"""``scalewise advise``: what to take of all that a sweep measured and rehearsed.

It judges nothing anew: verdicts, figures and commands are those of the report.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from scalewise.analysis import (
    SECONDS_PER_HOUR,
    VERDICT_RUNS,
    Analysis,
    Configuration,
    Estimate,
    RatioEstimate,
    Rehearsal,
    devices_to_take,
    ending_lines,
    factor,
    find_link,
    judge_config,
    listed,
    number,
    rate_ratio,
    samples_per_s,
    times,
    train_the_same,
)
from scalewise.config import ConfigError, conf_dir
from scalewise.records import CellFolder
from scalewise.report.answer import next_step, second_device, to_decide, to_mend, why_none
from scalewise.report.findings import command, command_of, remark_lines
from scalewise.report.scaling_tables import price_lines, why_not
from scalewise.report.sections import Column, Line, Lines, Section, lines, section, table, words

_MOST_CHANGES = 3
_MOST_PUBLISHED = 3
_AS_LARGE = 4.0
"""Times the parameters up to which what was published of a family is shown."""


@dataclass(frozen=True)
class Option:
    """One way to train a workload."""

    config: Configuration
    devices: int
    verdict: str | None
    speedup: RatioEstimate | None
    rehearsal: Rehearsal | None = None
    single: Configuration | None = None
    """What its speedup is over."""
    over: str = ""
    """Told beside the speedup where that is another than its own baseline."""

    @property
    def name(self) -> str:
        """``ddp x2``; the model is that of all options."""
        return self.config.label.removeprefix(f"{self.config.name('model')} ")

    @property
    def step_time_ms(self) -> Estimate | None:
        played = self.rehearsal
        return played.step_time_ms if played else self.config.estimate("step_time_ms")

    @property
    def brief(self) -> str:
        """``ddp x4, rehearsed over doctor: 3.91x (3.73-4.11), likely pays.``"""
        figure = f"{times(self.speedup)}{self.over}, " if self.speedup else ""
        return f"{self.name}: {figure}{self.verdict}."

    @property
    def told(self) -> str:
        """With the reason where a rehearsal tells nothing."""
        why = self.rehearsal.reason if self.rehearsal and self.verdict == "cannot tell" else ""
        return f"{self.brief.removesuffix('.')}, {why}." if why else self.brief


Options = Mapping[str, Option]
"""By ``config_id``."""


def advise(analysis: Analysis, samples: int | None) -> list[Section]:
    """A section a workload: four lines on what to take and why, every option, what wins most.

    Raises :class:`ConfigError` where nothing tells what one device does.
    """
    singles = [c for c in analysis.measured if c.devices == 1 and samples_per_s(c)]
    sound = [c for c in singles if not c.invalid]
    if not sound:
        lost = [(c.planned.name, c.ending, None) for c in analysis.unfinished
                if c.planned.devices == 1 and c.ending.message]  # fmt: skip
        none = "; ".join(["none", *[*ending_lines(lost)][:1], *_damaged(analysis)])
        found = f"an invalid one: {singles[0].invalid[0].text}" if singles else none
        uncounted = (c.uncounted for c in analysis.measured if c.devices == 1)
        found = next((f"one without samples/s: {why}" for why in uncounted if why), found)
        allowed = "; ".join(["a sweep with one that was timed", *to_mend(analysis)]).rstrip(".")
        raise ConfigError(f"single-device cell: found {found}; allowed: {allowed}")
    workloads = dict.fromkeys(c.workload for c in sound)
    return [_of_workload(analysis, workload, samples) for workload in workloads]


def _of_workload(
    analysis: Analysis, workload: tuple[str | None, str | None], samples: int | None
) -> Section:
    every = {
        one.config.config_id: one
        for one in _options(analysis)
        if one.config.workload == workload and not one.config.is_ceiling
    }
    columns = (
        words("option", "option", lambda one: one.name),
        Column("step", "step", "ms", lambda one: one.step_time_ms,
               lambda found: number(found.value)),
        Column("times", "speedup", "", lambda one: one.speedup, times),
        words("verdict", "verdict", lambda one: one.verdict),
        words("basis", "basis", lambda one: "rehearsed" if one.rehearsal else "measured"),
        Column("memory", "memory", "of GiB", lambda one: _memory(one.config), str),
        Column("hours", "time", "hours", lambda one: _hours(samples, one), number),
        Column("usd", "cost", "USD", lambda one: _usd(analysis, samples, one), number),
    )  # fmt: skip
    return section(
        "advice",
        ", ".join(filter(None, workload)),
        Lines(tuple(one for one in _lead(analysis, every, samples) if one.text), "plain"),
        table("options", columns, every.values()),
        lines(_legend(analysis, every, samples), "faint"),
        lines([*_changes(analysis, every), *_untold(analysis, every), *_published(every)], "plain"),
    )


def _options(analysis: Analysis) -> Iterator[Option]:
    for one in analysis.measured:
        pair, word = analysis.pair(one), analysis.verdict_word(one)
        sound = pair if word != "invalid" else None  # the speedup of an invalid one means nothing
        found = (sound.speedup, sound.single) if sound else (None, None)
        yield Option(one, one.devices or 1, word, found[0], single=found[1])
    for play in analysis.rehearsals:
        yield Option(play.config, play.record.ranks, play.word, play.shown, play, play.single)


def _hours(samples: int | None, one: Option) -> float | None:
    """At the rate of the timed steps, of a rehearsal at that of all its ranks."""
    of_all = one.devices / one.rehearsal.lateness if one.rehearsal else 1
    rate = samples_per_s(one.config) * of_all
    return (
        samples / rate / SECONDS_PER_HOUR if samples and rate and not one.config.invalid else None
    )


def _usd(analysis: Analysis, samples: int | None, one: Option) -> float | None:
    priced = one.rehearsal.single if one.rehearsal else one.config
    rent, hours = analysis.cost(priced).rent if priced else None, _hours(samples, one)
    return hours * one.devices * rent if hours and rent else None


def _memory(config: Configuration) -> str | None:
    """``12.3 of 80``: the peak of a device, and what it has; None of CPUs."""
    peak = config.estimate("peak_memory_per_device_mib")
    known = [r.device.memory_total_mib for r in config.rank_summaries if r.device.memory_total_mib]
    return f"{number(peak.value / 1024)} of {min(known) / 1024:.0f}" if peak and known else None


def _lead(analysis: Analysis, every: Options, samples: int | None) -> Iterator[Line]:
    """What to take, what of more devices, what it costs, and what to do next."""
    taken = _taken(analysis, every)
    model, beyond = taken.config.name("model") or "the model", _beyond(every, taken)
    judged = [_beside_fastest(analysis, every, o) for o in every.values()
              if not o.rehearsal and o.devices > 1 and o.speedup]  # fmt: skip
    judged.sort(key=lambda one: samples_per_s(one.config), reverse=True)
    if taken.devices > 1:
        yield Line(taken.told, model, f"take {taken.devices} devices")
    elif judged and all(one.verdict == "does not pay" for one in judged):
        yield Line(judged[0].told, model, "take one device")
    else:
        open_ = (one.told for one in judged if one.verdict != "does not pay")
        apart = (r for r in analysis.refused if r.config.config_id in every)
        none = "Nothing ran on several devices." if beyond else why_none(analysis)
        said = (*open_, *(f"{r.config.label}: {r.reason}." for r in apart), none)
        yield Line(said[0], model, "cannot tell")
    ladders = [one for one in analysis.ladders if taken.config in [rung.config for rung in one]]
    more = [rung for ladder in ladders for rung in ladder if rung.devices > taken.devices]
    if beyond or (more and taken.devices > 1):
        yield Line(beyond.brief if beyond else f"{why_not(more[0])}.")
    pair = analysis.pair(taken.config)
    if pair and taken.single and taken.speedup:
        efficiency = taken.speedup.scaled(1 / taken.devices)
        pair = replace(pair, single=taken.single, efficiency=efficiency)
    if samples:
        each = (
            f"{number(_hours(samples, one))} hours"
            + (f", {number(usd)} USD" if (usd := _usd(analysis, samples, one)) else "")
            for one in (taken, every.get(pair.single.config_id) if pair else None)
            if one
        )
        yield Line(f"{samples:,} samples: {'; on one device '.join(each)}.")
    elif pair and (ratio := analysis.cost_ratio(pair)):
        yield Line(f"A sample costs {factor(ratio.value)}x that on one device.")
    if any(one.verdict == "undecided" for one in judged):
        yield Line(next(to_decide(analysis), ""))
    elif beyond and beyond.verdict != "likely does not pay":
        yield Line(f"Next: measure {beyond.devices} devices where you have them, as said below.")
    elif pair := pair or (analysis.pair(judged[0].config) if judged else None):
        yield Line(next_step(analysis, pair))


def _taken(analysis: Analysis, every: Options) -> Option:
    """The fastest number of devices that pays beside any single device, else one device."""
    rungs = [devices_to_take(one) for one in analysis.ladders if one[0].config.config_id in every]
    held = [_beside_fastest(analysis, every, every[rung.config.config_id]) for rung in rungs]
    alone = (o for o in every.values() if o.devices == 1 and not o.config.invalid)
    paying = [one for one in held if one.verdict == "pays"] or [next(alone)]
    return max(paying, key=lambda one: samples_per_s(one.config))


def _beside_fastest(analysis: Analysis, every: Options, one: Option) -> Option:
    """What pays at its own batch and execution, judged beside the single device that is fastest."""
    alone = [o for o in every.values() if o.devices == 1 and not o.config.invalid
             and train_the_same(o.config, one.config)]  # fmt: skip
    fastest = max(alone, key=lambda o: samples_per_s(o.config), default=None)
    pair = analysis.pair(one.config)
    if one.verdict != "pays" or fastest is None or (pair and pair.single is fastest.config):
        return one
    speedup = rate_ratio(one.config, fastest.config)
    verdict = judge_config(one.config, speedup, None).verdict
    over = f" over the faster {fastest.name}"
    return replace(one, verdict=verdict, speedup=speedup, single=fastest.config, over=over)


def _beyond(every: Options, taken: Option) -> Option | None:
    """Of more devices, rehearsed alone: the most that likely pay, else the most."""
    more = [one for one in _only_rehearsed(every) if one.devices > taken.devices]
    return max(more, key=lambda one: (one.verdict == "likely pays", one.devices), default=None)


def _only_rehearsed(every: Options) -> list[Option]:
    return [o for o in every.values() if o.rehearsal and not o.rehearsal.measured]


def _legend(analysis: Analysis, every: Options, samples: int | None) -> Iterator[str]:
    links = dict.fromkeys(filter(None, (find_link(c) for c in analysis.measured)))
    over = f" over {listed(list(links), 2)}" if links else ""
    rehearsed = ", 90 % of what was rehearsed" * any(one.rehearsal for one in every.values())
    yield f"Speedups are over one device: 95 % intervals of what was measured{over}{rehearsed}."
    yield from price_lines(analysis, "USD missing") if samples else ()


def _changes(analysis: Analysis, every: Options) -> Iterator[str]:
    """What was shown to win over one device, the most first, with the command of each."""
    found: list[tuple[float, str, Configuration]] = []
    for one in analysis.alternatives:
        gain, config = one.gain, one.config
        if config.config_id not in every:
            continue
        shown = gain.is_above(1) and min(gain.n) >= VERDICT_RUNS
        if shown and analysis.verdict_word(config) in ("pays", "baseline"):
            learns = "; compare what it learns" if one.what.startswith("precision") else ""
            found.append((gain.value, f"{one.what}: {times(gain)}, measured{learns}.", config))
    for play in _only_rehearsed(every):
        if play.verdict == "likely pays" and play.speedup:
            found.append((play.speedup.value, play.told, play.config))
    found.sort(key=lambda one: one[0], reverse=True)
    yield "What wins most:" if found else "Nothing here is shown to win over one device."
    for place, (_, told, config) in enumerate(found[:_MOST_CHANGES], start=1):
        yield from (f"{place}. {told}", *_run(analysis, command_of(analysis, config)))


def _untold(analysis: Analysis, every: Options) -> Iterator[str]:
    """What nothing here tells, and what would."""
    for one in _only_rehearsed(every):
        if one.verdict == "cannot tell":
            yield from (one.told, *_run(analysis, command_of(analysis, one.config)))
    alone = all(one.devices == 1 and not one.config.is_monitored for one in every.values())
    if alone and not analysis.tried_on_several:
        yield from _run(analysis, command(analysis, second_device(analysis)))
    failed = {c.planned.config_id for c in analysis.unfinished if c.state == "failed"}
    # Once one has failed, its like are skipped for the same cause.
    lost = [c for c in analysis.unfinished
            if c.state == "failed" or c.planned.config_id not in failed]  # fmt: skip
    yield from (f"Out of memory: {c.planned.name}." for c in lost if c.ending.cause == "oom")
    told = (c for c in lost if c.state in ("failed", "skipped") and c.ending.cause != "oom")
    yield from ending_lines(
        [(c.planned.name, c.ending, CellFolder(c.path).find_log(c.ending)) for c in told]
    )
    yield from (f"Fault: {brief}." for brief in _damaged(analysis))


def _published(every: Options) -> Iterator[str]:
    """What others published of the model's family on other kinds of GPU, the nearest in size."""
    configs, most = [o.config for o in every.values()], max(o.devices for o in every.values())
    name = f"{configs[0].name('model')} {configs[0].setting('model._target_')}".lower()
    ranks = [rank for config in configs for rank in config.rank_summaries]
    here = " ".join(rank.device.name for rank in ranks)
    size = max(1, *(rank.parameters_total or 0 for rank in ranks))

    def apart(row: Mapping[str, str]) -> tuple[float, int]:
        return abs(math.log(int(row["parameters"]) / size)), abs(int(row["devices"]) - most)

    with (conf_dir() / "published_scaling.csv").open(encoding="utf-8", newline="") as file:
        alike = [r for r in csv.DictReader(file) if r["family"] in name and r["kind"] not in here]
    nearest: dict[tuple[str, str], dict[str, str]] = {}
    for row in sorted(alike, key=apart):
        if apart(row)[0] <= math.log(_AS_LARGE):
            nearest.setdefault((row["kind"], row["link"]), row)
    if nearest:
        yield "Published elsewhere, not measured here, each with its own batches:"
    for r in list(nearest.values())[:_MOST_PUBLISHED]:
        span = " to ".join(dict.fromkeys(factor(float(r[f"speedup_{e}"])) for e in ("low", "high")))
        source = r["sources"].split(";")[0].split(" ")[0]
        yield f"  {r['model']}, {r['devices']} x {r['gpu']}, {r['link']}: {span}x ({source})."


def _run(analysis: Analysis, typed: str) -> Iterator[str]:
    """A command, where what was typed of the sweep is on record."""
    if analysis.sweep.command:
        yield f"  Run: {typed}"


def _damaged(analysis: Analysis) -> list[str]:
    """The first record that cannot be read, whose figures no advice holds."""
    found = (one for one in remark_lines(analysis) if one.first.code == "records_damaged")
    return [one.brief for one in found][:1]
