"""The table of figures: every figure of a configuration, declared once.

``results.csv`` and ``results.json``, the tables of a report, report.html, :func:`scalewise.load`,
comparisons and trackers take a figure from here, by its key. A figure over runs is declared with
those of a run (:data:`~scalewise.analysis.run.RUN_FIGURES`) and named here at its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from scalewise.analysis.communication import Communication, measured_serial_fraction
from scalewise.analysis.configuration import Configuration
from scalewise.analysis.figures import Figure, as_plain
from scalewise.analysis.loss_budget import CAUSE_WORDS, LossBudget
from scalewise.analysis.losses import BEST
from scalewise.analysis.run import RUN_FIGURES
from scalewise.analysis.scaling import Pair
from scalewise.analysis.statistics import estimate_positive
from scalewise.analysis.step_figures import epochs_after
from scalewise.analysis.steps import RankAnatomy
from scalewise.analysis.summary import Analysis
from scalewise.config import Price
from scalewise.records import PHASES, DeviceInfo


@dataclass(frozen=True)
class Row:
    """A configuration, and what its figures are read from."""

    analysis: Analysis
    config: Configuration
    warmup_epochs: int = 1
    """Epochs of each run that are in no epoch time."""

    @cached_property
    def pair(self) -> Pair | None:
        """Beside its baseline; None where its verdict is *invalid*: no figure of it is shown."""
        pair = self.analysis.pair(self.config)
        return None if pair is None or pair.invalid else pair

    @cached_property
    def anatomy(self) -> RankAnatomy | None:
        return self.config.anatomy

    @property
    def budget(self) -> LossBudget | None:
        return self.analysis.budgets.get(self.config.config_id)

    @property
    def communication(self) -> Communication | None:
        return self.analysis.communication.get(self.config.config_id)

    @property
    def price(self) -> Price | None:
        return self.analysis.cost(self.config).price

    @property
    def device(self) -> DeviceInfo | None:
        return next((rank.device for rank in self.config.rank_summaries), None)

    @property
    def speedup_at_equal_clocks(self) -> float | None:
        """Bounds the part of the SM clocks in a speedup; None where a clock was not read."""
        factor = self.budget.at_equal_clocks if self.budget and self.pair else None
        return factor and factor * self.pair.speedup.value if self.pair else None

    def in_columns(self, shown: Sequence[Figure[Row]]) -> dict[str, Any]:
        """Figures by their columns in files; then the leaves that differ between rows."""
        found = {k: v for figure in shown for k, v in figure.in_columns(self).items()}
        return found | dict(self.config.leaves)

    def as_plain(self) -> dict[str, Any]:
        """Every figure for JSON, by key."""
        return {figure.key: as_plain(figure.of(self)) for figure in all_figures(self.analysis)}


Read = Callable[[Row], Any]


def _of_runs(key: str, of: Read) -> Figure[Row]:
    """A figure of a run, with what is read over all runs of the configuration."""
    own = RUN_FIGURES[key]
    return Figure(key, of, own.says, own.heading, own.unit, own.on, own.text,
                  own.has_ends, own.in_csv)  # fmt: skip


def _estimated(*keys: str) -> list[Figure[Row]]:
    return [_of_runs(key, partial(lambda k, row: row.config.estimate(k), key)) for key in keys]


def _of_first_run(key: str, row: Row) -> Any:
    return RUN_FIGURES[key].of(row.config.runs[0]) if row.config.runs else None


def _of_each_run(key: str, row: Row) -> str | None:
    """Of each run in turn, once where all are alike: ``20, 65, 20``."""
    each = (RUN_FIGURES[key].of(run) for run in row.config.runs)
    known = [value for value in each if value is not None]
    return ", ".join(map(str, known if len(set(known)) > 1 else known[:1])) or None


def _scaling(row: Row) -> str | None:
    """None of one device whose program decides on its batch: nobody asked for either."""
    config = row.config
    alone = config.has_own_settings and config.devices == 1
    return None if alone else _of_first_run("scaling", row)


def _pair(name: str) -> Read:
    return lambda row: getattr(row.pair, name, None)


def _name(group: str) -> Figure[Row]:
    return Figure(group, lambda row: row.config.name(group), f"name of the chosen {group}",
                  group, text=str)  # fmt: skip


def _reason(row: Row) -> str | None:
    analysis, config = row.analysis, row.config
    if invalid := analysis.invalid.get(config.config_id):
        return invalid[0].text
    if reason := analysis.reasons.get(config.config_id):
        return reason
    if refused := analysis.refusal(config):
        return refused.reason
    return None if config.runs else config.cells[-1].ending.message


def _epoch_time_s(row: Row) -> float | None:
    runs = [epochs_after(run.cell, row.warmup_epochs) for run in row.config.runs]
    means = [sum(seconds for _, seconds in each) / len(each) for each in runs if each]
    return estimate_positive(means).value if means else None


def _limit(name: str) -> Read:
    """Of the largest loss, where one is a limit."""
    return lambda r: getattr(next(iter(r.budget.limits if r.budget else ()), None), name, None)


def _loss(name: str) -> Read:
    """Of both sides after the same number of samples."""
    return lambda row: getattr(row.pair and row.pair.loss, name, None)


def p_words(p_value: float) -> str:
    """Two digits, none below a thousandth."""
    return "<0.001" if p_value < 0.001 else f"{p_value:.2g}"


FIGURES: tuple[Figure[Row], ...] = (
    Figure("config_id", lambda r: r.config.config_id, RUN_FIGURES["config_id"].says,
           in_csv=False),
    Figure("configuration", lambda r: r.config.label, "its label in the report", "configuration",
           on="scaling resources balance cost summary page", text=str),
    Figure("baseline", lambda r: r.pair and r.pair.single.label,
           "the single device that it is held against", in_csv=False),
    replace(_name("model"), on="page"),
    replace(_name("dataset"), on="summary"),
    replace(_name("strategy"), on="page"),
    Figure("precision", lambda r: r.config.precision,
           "name of the chosen precision; of an operation, the format of its data", "precision",
           text=str),
    replace(_name("execution"), in_csv=False),
    replace(_name("optimizer"), in_csv=False),
    Figure("device", lambda r: r.device and r.device.name, "name of the GPU, or of the processor",
           in_csv=False),
    Figure("devices", lambda r: r.config.devices, "how many", "devices", on="page"),
    _of_runs("scaling", _scaling),
    *(_of_runs(key, partial(_of_first_run, key))
      for key in ("global_batch_size_samples", "per_device_batch_size_samples",
                  "parameters_total", "parameters_trainable")),
    Figure("runs_done", lambda r: len(r.config.runs), "finished runs in its figures"),
    Figure("runs_set_aside", lambda r: len(r.config.set_aside), "finished runs in none of them"),
    Figure("runs_planned", lambda r: len(r.config.cells), "cells that were asked for"),
    *(_of_runs(key, partial(_of_each_run, key))
      for key in ("timed_from_step", "timed_steps", "warmup_rule")),
    *_estimated("global_samples_per_s", "step_time_ms", "step_time_p50_ms", "step_time_p99_ms"),
    Figure("speedup_ratio", _pair("speedup"), "samples a second over those of the baseline",
           "speedup", on="scaling speed summary page trackers", has_ends=True),
    Figure("speedup_runs", lambda r: r.pair and min(r.pair.speedup.n),
           "pairs of runs behind it, or runs of the shorter side", in_csv=False),
    Figure("speedup_p_value", lambda r: r.pair and r.pair.speedup.p_value,
           "two-sided, that the speedup is 1", "p", text=p_words),
    Figure("efficiency_ratio", _pair("efficiency"), "speedup over devices", "efficiency",
           on="scaling speed summary page trackers", has_ends=True),
    Figure("speedup_at_equal_clocks_ratio", lambda r: r.speedup_at_equal_clocks,
           "the speedup if both sides had the SM clock of the faster one"),
    Figure("efficiency_at_equal_clocks_ratio",
           lambda r: (s := r.speedup_at_equal_clocks) and r.pair and s / r.pair.devices,
           "that over devices"),
    Figure("speedup_of_median_steps_ratio", _pair("speedup_of_medians"),
           "by the median steps of both sides", in_csv=False),
    *_estimated("peak_memory_per_device_mib", "memory_used_per_device_mib", "memory_cv_percent",
                "utilization_per_device_percent"),
    _of_runs("utilization_readings",
             lambda r: sum(run.utilization_readings for run in r.config.runs)),
    *_estimated("utilization_cv_percent", "power_cv_percent", "sm_activity_cv_percent",
                "arrival_cv_percent"),
    _of_runs("loss_name", lambda r: " / ".join(
        dict.fromkeys(run.loss.name for run in r.config.runs if run.loss)) or None),
    *_estimated("loss_reached"),
    Figure("equal_samples", _loss("samples"), "samples after which both losses are compared",
           in_csv=False),
    Figure("loss_at_equal_samples", _loss("multi"), "loss there", in_csv=False),
    Figure("baseline_loss_at_equal_samples", _loss("single"), "loss of the baseline there",
           in_csv=False),
    *_estimated("val_accuracy_reached", "points_dropped_per_batch"),
    Figure("epoch_time_s", _epoch_time_s, "mean of whole epochs, without those of the warm-up"),
    Figure("compute_to_communication_ratio",
           lambda r: r.communication and r.communication.compute_to_communication,
           "forward, backward and optimizer over communication"),
    Figure("compute_to_communication_of", lambda r: r.communication and r.communication.against,
           "which communication that is"),
    Figure("amdahl_serial_fraction",
           # Without one there is a reason, which has no value.
           lambda r: getattr(r.pair and measured_serial_fraction(r.pair), "value", None),
           "of Karp and Flatt, from the speedup"),
    *_estimated("energy_j_per_million_samples", "energy_j_per_step", "energy_j_per_run",
                "optimizer_memory_mib"),
    Figure("usd_per_device_hour", lambda r: r.price and r.price.usd_per_hour,
           "price of one device"),
    Figure("price_source", lambda r: r.price and f"{r.price.source}, {r.price.date}",
           "who said so, and when"),
    Figure("usd_per_million_samples",
           lambda r: r.analysis.cost(r.config).usd_per_million_samples,
           "of all devices, over the timed steps", "USD per million samples",
           on="cost page", has_ends=True),
    Figure("sample_cost_ratio", lambda r: r.pair and r.analysis.cost_ratio(r.pair),
           "a sample's cost over the baseline's", "cost of a sample", "x single",
           on="cost page trackers", has_ends=True),
    *(Figure(f"{name}_ms", partial(lambda n, r: r.anatomy and r.anatomy.phases_ms.get(n), name),
             "mean ms a step over runs and ranks, by the clock that `timeline` names")
      for name in PHASES),
    Figure("timeline", lambda r: r.anatomy and r.anatomy.timeline,
           "`device` (CUDA events) or `host`"),
    Figure("ideal_step_time_ms", lambda r: r.budget and r.budget.ideal_ms,
           "the baseline's step for the share of each device"),
    Figure("measured_step_time_ms", lambda r: r.budget and r.budget.measured_ms,
           "the step that the losses below lead to from there", in_csv=False),
    *(Figure(f"lost_{cause}_ms", partial(lambda c, r: r.budget and r.budget.ms(c), cause),
             f"part of that step: {words}", in_csv=False)
      for cause, words in CAUSE_WORDS.items()),
    Figure("main_limit", _limit("cause"), "the largest loss, of a tenth of the step or more"),
    Figure("main_limit_ms", _limit("ms"), "its length"),
    Figure("verdict", lambda r: r.analysis.verdict_word(r.config),
           "as in the report; `not comparable` has its reason and no figures",
           "verdict", on="scaling speed summary trackers", text=str),
    Figure("seed_label", _pair("seed_label"), "what the published study's rule says",
           "study's label", on="scaling", text=str),
    Figure("reason", _reason, "why: the verdict's, or why there is no figure"),
)  # fmt: skip
"""In the order of ``results.csv``."""


def logged_figures(analysis: Analysis) -> list[Figure[Row]]:
    """A figure for each metric that a module of the sweep logged, last and best."""
    taken = {figure.key for figure in FIGURES}
    keys = dict.fromkeys(key for config in analysis.configurations for key in config.logged)
    which = {True: "best", False: "last"}
    return [
        Figure(key, partial(lambda k, row: row.config.estimate(k), key),
               f"the {which[key.startswith(BEST)]} value that a run logged", key, has_ends=True)
        for key in keys
        if key not in taken
    ]  # fmt: skip


def all_figures(analysis: Analysis) -> list[Figure[Row]]:
    """Every figure of a sweep: those that all have, then what its modules logged."""
    return [*FIGURES, *logged_figures(analysis)]


def shown_on(table: str) -> list[Figure[Row]]:
    """The figures of one of the tables, by its name."""
    return [figure for figure in FIGURES if table in figure.on.split()]


def rows(analysis: Analysis, warmup_epochs: int = 1) -> list[Row]:
    """Every configuration, measured or not."""
    return [Row(analysis, config, warmup_epochs) for config in analysis.configurations]


def measured_rows(analysis: Analysis) -> list[Row]:
    """Those that are timed, with at least one finished run."""
    return [Row(analysis, config) for config in analysis.measured]


def csv_rows(analysis: Analysis, warmup_epochs: int = 1) -> list[dict[str, Any]]:
    """``results.csv`` by column; last the leaves of the configuration that differ between rows."""
    shown = [figure for figure in all_figures(analysis) if figure.in_csv]
    return [row.in_columns(shown) for row in rows(analysis, warmup_epochs)]
