"""Repeats gathered into what a table shows as one row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from scalewise.analysis.comparability import (
    ON_A_QUIET_HOST,
    Identity,
    SetAside,
    differences,
    grouped,
    identity,
    place,
    shared_part,
    split_repeats,
)
from scalewise.analysis.disturbances import FOREIGN_CPU_UP_TO, is_disturbed
from scalewise.analysis.figures import Scale
from scalewise.analysis.labels import name_rows, named, swept_order, swept_values
from scalewise.analysis.model import (
    CellRecords,
    StartedBy,
    Sweep,
    is_monitored,
    is_profiled,
    rehearsed_kind,
    setting,
)
from scalewise.analysis.remarks import Remark
from scalewise.analysis.run import RUN_FIGURES, Run, measure_run
from scalewise.analysis.statistics import (
    ENOUGH,
    Estimate,
    Runs,
    estimate_mean,
    estimate_not_negative,
    estimate_runs,
)
from scalewise.analysis.steps import RankAnatomy, mean_anatomy, mean_of_known, pipeline_of
from scalewise.config import ONCE, config_id, key_of, pasteable
from scalewise.records import CellResult, RankSummary, RehearsalRecord, words_beside

_ESTIMATES: Mapping[Scale, Callable[[Sequence[float]], Estimate]] = {
    "positive": estimate_runs,
    "not negative": estimate_not_negative,
    "any sign": estimate_mean,
}

PHASE_WORDS = words_beside(__file__, dict[str, str])

IDLE = "idle: waiting for other stages"
"""What is left of a step of a pipeline: its stages wait for one another, no callback runs."""


@dataclass(frozen=True)
class Configuration:
    """All cells that differ in nothing but the repeat, on equal devices."""

    config_id: str
    """Its own among the rows: of one configuration on several kinds of device, the row with most
    runs keeps the configuration's, the others' ends with what they ran on."""
    label: str
    """Short and unique within the sweep."""
    cells: tuple[CellRecords, ...]
    runs: tuple[Run, ...]
    """The finished ones, but for those in ``set_aside``."""
    identity: Identity
    set_aside: tuple[SetAside, ...] = ()
    """Finished cells whose figures are not mixed with the others'."""
    leaves: Mapping[str, str] = field(default_factory=dict)
    """Dotted leaves of the configuration that differ between rows, and what it ran on."""
    elsewhere: tuple[CellRecords, ...] = ()
    """Cells of the same configuration on other devices: rows of their own."""

    @property
    def devices(self) -> int | None:
        """Devices it ran on; if it never ran, what it asked for (None: all of the host)."""
        if self.runs:
            return self.runs[0].world_size
        return 1 if self.name("strategy") == "single" else self.cells[0].planned.devices

    @property
    def device_words(self) -> str:
        """``one device`` or ``2 devices``: which side of a comparison it is."""
        return "one device" if self.devices == 1 else f"{self.devices} devices"

    @property
    def swept(self) -> tuple[str, ...]:
        """The words of its label that tell it from others of its model, strategy and devices."""
        return swept_values(self.label)

    @property
    def asked(self) -> Mapping[str, Any]:
        """What was configured; empty where that could not be read."""
        return self.cells[0].config or {}

    def setting(self, key: str) -> Any:
        """What was configured as a dotted key; None where there is none."""
        return setting(self.asked, key)

    def name(self, group: str) -> str | None:
        """``name("model")`` is the chosen model's name."""
        return named(self.asked, group)

    @cached_property
    def is_timed(self) -> bool:
        """Whether it trains to be compared: no time counts that it took under a profiler."""
        return not is_profiled(self.asked)

    @property
    def rehearsed_kind(self) -> str | None:
        return rehearsed_kind(self.asked)

    @property
    def rehearsed(self) -> RehearsalRecord | None:
        """What was emulated of its ranks; None where all were there, and before it ran."""
        return self.result.rehearsed if self.result else None

    @cached_property
    def shared_part(self) -> frozenset[tuple[str, str]]:
        """Of its identity: with its baseline on one device it has that in common."""
        return shared_part(self.identity)

    @property
    def is_operation(self) -> bool:
        """Whether its model is an operation, which is only run forward and trains nothing."""
        return str(self.setting("model._target_")).startswith("scalewise.operations.")

    @cached_property
    def is_ceiling(self) -> bool:
        """Whether each rank trained its own model: a bound, not a way to train one model."""
        return any(run.result.models > 1 for run in self.runs)

    @cached_property
    def hides_collectives(self) -> bool:
        """Whether ranks meet inside forward and backward, as far as these were timed."""
        found = [run.anatomy for run in self.runs if run.anatomy is not None]
        timed = [one for one in found if one.ranks[-1].phases_ms["forward"] is not None]
        meets = self.has_own_settings or self.setting("strategy.kind") in ("fsdp", "tensor")
        is_seen = not timed or any(one.communication is not None for one in timed)
        return meets and self.devices != 1 and not is_seen

    @property
    def is_monitored(self) -> bool:
        return is_monitored(self.asked)

    @property
    def has_own_settings(self) -> bool:
        """Whether a script of the user's own trained it, which none of our settings changes."""
        return self.started_by != "sweep"

    @property
    def started_by(self) -> StartedBy:
        """What starts its runs, in whose words more are asked for."""
        if self.is_monitored:
            return "monitor"
        return "sweep" if self.setting("script.command") is None else "script"

    @property
    def on_both(self) -> str:
        """What one types for this script on one device and on several, often enough to decide."""
        both = f"devices=1,{max(2, self.devices or 2)}"
        cell = self.cells[0]
        typed = cell.provenance.command[1:] if cell.provenance else cell.planned.overrides
        kept = (ENOUGH.get(word, word) for word in typed if key_of(word) not in ("devices", *ONCE))
        return pasteable("", [both, *kept], str(self.setting("script.command")))

    @property
    def makes_own_batches(self) -> bool:
        """Whether loaders of the user's own made its batches, whatever was configured."""
        return any(rank.own_batches for rank in self.rank_summaries)

    @property
    def precision(self) -> str | None:
        """That of training; of an operation, which has none, the data's number format."""
        if not self.is_operation:
            return self.name("precision")
        return str(self.setting("dataset.dtype") or "fp32")

    @cached_property
    def result(self) -> CellResult | None:
        """Of its first run; None if it never ran."""
        return self.runs[0].result if self.runs else None

    @property
    def global_batch(self) -> int | None:
        """Samples a step of all devices; None if it never ran or nobody could count them."""
        return self.result.global_batch_size if self.result else None

    @property
    def step_ms(self) -> float:
        """Mean step of its runs, of which one was timed: the same in every table and sentence."""
        found = self.estimate("step_time_ms")
        assert found is not None, "no run of it was timed"
        return found.value

    @property
    def uncounted(self) -> str | None:
        """Why one of its runs has step times and no samples/s; None where all have both."""
        blank = (run for run in self.runs if run.throughput and run.samples_per_s is None)
        return next((run.missing["throughput"] for run in blank), None)

    @property
    def workload(self) -> tuple[str | None, str | None]:
        return self.name("model"), self.name("dataset")

    @cached_property
    def learned(self) -> tuple[Run, ...]:
        """Its runs, and those that others on the host disturbed: what they learned counts."""
        disturbed = (one.cell for one in self.set_aside if one.is_disturbed)
        return (*self.runs, *map(measure_run, disturbed)) if self.runs else ()

    @property
    def seeds_learned(self) -> int:
        """How many seeds its logged metrics are over."""
        return len({seed_of(run.cell) for run in self.learned} - {None})

    @property
    def samples_reached(self) -> set[int]:
        """After how many samples its runs had the losses that they are compared by."""
        return {run.loss.samples[-1] for run in self.learned if run.loss}

    def values(self, key: str) -> list[float]:
        """The figure of every run that has it."""
        return [v for run in self.runs if (v := run.value(key)) is not None]

    def rounds(self, key: str) -> Runs:
        """As :meth:`values`, by round, to be compared within rounds; a logged metric by seed."""
        timed = key in RUN_FIGURES
        runs = self.runs if timed else self.learned
        known = [(run, v) for run in runs if (v := run.value(key)) is not None]
        return self.by_round(known) if timed else _by_seed(known)

    @property
    def seeds(self) -> list[int]:
        """Of its cells, from small to large."""
        return sorted({seed for cell in self.cells if (seed := seed_of(cell)) is not None})

    def by_round(self, values: Sequence[tuple[Run, float]]) -> Runs:
        """Values of runs by their round of the sweep: their repeat, and of several seeds the seed.

        Runs of a script of one's own were made one after another: they have no rounds.
        """
        if self.is_monitored:
            return [value for _, value in values]
        several = len(self.seeds) > 1

        def number(cell: CellRecords) -> int:
            # A side may lack a seed that the other has.
            seed = seed_of(cell) if several else None
            return cell.planned.repeat + _MORE_THAN_REPEATS * (seed or 0)

        return {number(run.cell): value for run, value in values}

    def estimate(self, key: str) -> Estimate | None:
        """A figure over runs with its interval; None if no run has it."""
        if key not in self._estimates:  # a report asks for each in many tables
            each, own = self.rounds(key), RUN_FIGURES.get(key)
            values = [*each.values()] if isinstance(each, Mapping) else [*each]
            scale = "any sign" if own is None else own.scale  # a logged metric may be anything
            assert scale is not None, f"{key} is not estimated over runs"
            self._estimates[key] = _ESTIMATES[scale](values) if values else None
        return self._estimates[key]

    @cached_property
    def _estimates(self) -> dict[str, Estimate | None]:
        return {}

    @property
    def logged(self) -> tuple[str, ...]:
        """Keys of what the modules of its runs logged."""
        return tuple(dict.fromkeys(key for run in self.learned for key in run.logged))

    @property
    def rank_summaries(self) -> list[RankSummary]:
        return [rank for run in self.runs for rank in run.ranks]

    @property
    def invalid(self) -> tuple[Remark, ...]:
        """Why its figures mean nothing, a reason of each code; empty where every run is sound.

        One run is enough: a mean with it in is as wrong as it is.
        """
        found = {one.code: one for run in reversed(self.runs) for one in run.invalid}
        return tuple(replace(one, about=self.config_id) for one in found.values())

    @property
    def is_cpu(self) -> bool:
        return any(rank.device.kind == "cpu" for rank in self.rank_summaries)

    def mean_of_devices(self, name: str) -> float | None:
        """A figure of :class:`DeviceUsage`, mean over devices and the runs that have it."""
        return mean_of_known([run.usage.mean(name) for run in self.runs if run.usage])

    @property
    def clock_mhz(self) -> float | None:
        """SM clock, mean over runs and devices; None where it was not read."""
        return self.mean_of_devices("sm_clock_mhz") or None

    @property
    def anatomy(self) -> RankAnatomy | None:
        """Mean over runs and ranks on the better timeline, of the phases that were measured."""
        for line in ("device", "host"):
            means = [m for run in self.runs if run.anatomy and (m := run.anatomy.mean(line))]
            if means and all(m.step_ms for m in means):
                mean = mean_anatomy(means)
                known = {n: ms for n, ms in mean.phases_ms.items() if ms is not None}
                return replace(mean, phases_ms=known)
        return None

    def phase_word(self, phase: str) -> str:
        """What a phase of its steps is called."""
        if phase == "other" and any(pipeline_of(run.cell) for run in self.runs):
            return IDLE
        return PHASE_WORDS[phase]


_MORE_THAN_REPEATS = 1_000_000


def _by_seed(values: Sequence[tuple[Run, float]]) -> Runs:
    """The mean of each seed: its repeats see the same batches, and are one sample."""
    seeds = grouped(values, lambda one: seed_of(one[0].cell))
    if None in seeds:
        return [value for _, value in values]
    return {
        seed: sum(value for _, value in own) / len(own)
        for seed, own in seeds.items()
        if seed is not None
    }


def configurations(sweep: Sweep) -> tuple[Configuration, ...]:
    """The cells of a sweep grouped by ``config_id`` and by what they ran on.

    Workloads in the order of the plan, within them swept values, numbers from small to large, and
    within those single device first, so that it stands above what is compared with it.
    """
    placed = [(one, _by_place(name, one)) for name, one in _by_configuration(sweep.cells).items()]
    groups = {key: cells for _, found in placed for key, cells in found.items()}
    of_one = {key: one for one, found in placed for key in found}
    for cells in groups.values():
        cells.sort(key=lambda c: (c.planned.repeat, seed_of(c) or 0))
    ran = {key: next((p for p in map(place, cells) if p), None) for key, cells in groups.items()}
    first = next((found for found in ran.values() if found), {})
    # A row that never ran is not told apart by that.
    usual = {name: word for name, word in first.items() if name != "split"}
    labels, leaves = name_rows(
        {key: min(cells, key=lambda one: one.result is None) for key, cells in groups.items()},
        {key: found or usual for key, found in ran.items()},
    )
    found = [
        replace(
            _configuration(key, labels[key], cells),
            leaves=leaves[key],
            elsewhere=tuple(c for c in of_one[key] if c not in cells),
        )
        for key, cells in groups.items()
    ]
    ordered: list[Configuration] = []
    for rows in grouped(found, lambda config: config.workload).values():
        rows.sort(key=lambda c: c.devices or 1 << 30)
        swept = swept_order([c.label for c in rows])
        ordered += sorted(rows, key=lambda c: swept[c.label])
    return tuple(ordered)


def _by_configuration(cells: Sequence[CellRecords]) -> dict[str, list[CellRecords]]:
    """Cells by the ``config_id`` of their row's first: seeds of one configuration are its runs."""
    repeats = grouped(cells, lambda cell: cell.planned.config_id)
    found: dict[str, list[CellRecords]] = {}
    for alike in grouped(repeats, lambda own: _without_seed(own, repeats[own])).values():
        seeds = {seed_of(repeats[own][0]) for own in alike}
        # Ids of two versions may stand for one configuration: those stay apart.
        for row in [alike] if len(seeds) == len(alike) else [[own] for own in alike]:
            found[row[0]] = [cell for own in row for cell in repeats[own]]
    return found


def _without_seed(own: str, cells: Sequence[CellRecords]) -> str:
    """What configurations share that differ in nothing but the seed; ``own`` is the id of one."""
    config = next((cell.config for cell in cells if cell.config is not None), None)
    if config is None or is_monitored(config) or seed_of(cells[0]) is None:
        return own
    return config_id({key: value for key, value in config.items() if key != "seed"})


def seed_of(cell: CellRecords) -> int | None:
    """The seed that a cell was given; None where its configuration has none."""
    seed = (cell.config or {}).get("seed")
    return seed if isinstance(seed, int) else None


def _by_place(config_id: str, cells: Sequence[CellRecords]) -> dict[str, list[CellRecords]]:
    """Cells of one row by what they ran on; those without a result with the most."""

    def where(cell: CellRecords) -> str:
        devices = cell.result.world_size if cell.result else 0
        return " ".join([str(devices), *place(cell).values()])

    places = grouped((cell for cell in cells if cell.result is not None), where)
    most, *others = sorted(places, key=lambda p: len(places[p]), reverse=True) or [""]
    first = [*places.get(most, ()), *(cell for cell in cells if cell.result is None)]
    return {config_id: first, **{f"{config_id} {name}": places[name] for name in others}}


def _configuration(config_id: str, label: str, cells: Sequence[CellRecords]) -> Configuration:
    kept, aside = split_repeats(cells)
    disturbed = _find_disturbed(kept)
    kept = [cell for cell in kept if not any(cell is one.cell for one in disturbed)]
    runs = tuple(map(measure_run, kept))
    return Configuration(
        config_id, label, tuple(cells), runs, identity(kept or cells), (*aside, *disturbed)
    )


def _find_disturbed(cells: Sequence[CellRecords]) -> list[SetAside]:
    """The disturbed repeats; none where they are over a quarter, with those made in their place."""
    why = f"was disturbed: other processes took over {100 * FOREIGN_CPU_UP_TO:g} % of its cores"
    found = [SetAside(cell, why, ON_A_QUIET_HOST) for cell in cells if is_disturbed(cell)]
    are_replaced = any((cell.config or {}).get("repeats") == "auto" for cell in cells)
    to_come = len(found) if are_replaced else 0
    return found if len(found) <= (len(cells) + to_come) / 4 else []


def read_scaling(configs: Sequence[Configuration]) -> tuple[Configuration, ...]:
    """Fits on several devices that decide on their batches as the scaling of fewest differences.

    Lightning's batch is per process, so each such fit is recorded as weak scaling. A script that
    divides its batch among its devices means strong scaling. Which of the two it is shows beside
    the fits on one device; weak, as recorded, where both fit.
    """
    singles = [c for c in configs if c.devices == 1 and c.runs]

    def read(config: Configuration) -> Configuration:
        if config.devices == 1 or not config.runs or not has_own_batches(config):
            return config
        # Of two as near the first one.
        return min((config, as_strong(config)), key=distance)

    def distance(one: Configuration) -> int:
        each = (differences(identity_beside(s, one), one.identity) for s in singles)
        return min(map(len, each), default=0)

    return tuple(map(read, configs))


def identity_beside(single: Configuration, multi: Configuration) -> Identity:
    if not (has_own_batches(single) or has_own_batches(multi)) or "scaling" not in multi.identity:
        return single.identity
    return {**single.identity, "scaling": multi.identity["scaling"]}


def describe_inferred_scaling(multi: Configuration) -> str:
    """The scaling that a fit with its own batches was taken for; empty where it was typed."""
    if not has_own_batches(multi):
        return ""
    if multi.identity.get("scaling") == "strong":
        return "strong scaling, equal global batches"
    return "weak scaling, equal batches a device"


def as_strong(config: Configuration) -> Configuration:
    """A fit with its own batches, read as strong scaling."""
    runs = tuple(replace(run, cell=_strong(run.cell)) for run in config.runs)
    return replace(
        config,
        cells=tuple(map(_strong, config.cells)),
        runs=runs,
        identity=identity([run.cell for run in runs]),
        set_aside=tuple(replace(one, cell=_strong(one.cell)) for one in config.set_aside),
    )


def _strong(cell: CellRecords) -> CellRecords:
    result = cell.result
    return cell if result is None else replace(cell, result=replace(result, scaling="strong"))


def has_own_batches(config: Configuration) -> bool:
    """Whether a script or a data module of the user's gave other batches than were asked for."""
    if config.has_own_settings:
        return True
    given, asked = {run.result.per_device_batch_size for run in config.runs}, config.asked
    target = str(config.setting("dataset._target_") or "scalewise.")
    own = config.makes_own_batches or not target.startswith("scalewise.")
    return own and asked.get("scaling") == "weak" and given != {asked.get("batch_size")}
