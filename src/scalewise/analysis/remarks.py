"""What a reader must know before trusting a figure: remarks, and their words.

A rule leaves a code and its figures. A sentence is made when it is printed, and nobody reads one.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from scalewise.analysis.figures import factor

Gravity = Literal["invalid", "undecided", "doubt", "note"]
"""*invalid*: a figure means nothing; *undecided*: no verdict may rest on it; *doubt*: it may be
other than it seems; *note*: what it is, or what it cannot tell."""


class Kind(NamedTuple):
    """The words of a code: templates of its figures."""

    gravity: Gravity
    brief: str
    """The same for every run that it holds of: a terminal shows it alone."""
    more: str = ""
    """What a report adds."""


WORDS: Final[Mapping[str, Kind]] = {
    "shards_overlap": Kind("invalid", "{explanation}"),
    "shared_device": Kind("invalid", "ranks {ranks} computed on one GPU", "{uuid}"),
    "sample_count": Kind("invalid", "{counted:,} samples of a batch were counted (its first tensor "
        "is {shape}), but the loader's batch_size is {asked:,}", "put the batch dimension first"),
    "untrained": Kind("invalid", "{steps:,} of {of:,} steps trained nothing",
        "training_step returned no loss in them, so their time is not that of training"),
    "frozen": Kind("invalid", "no parameter changed in {of:,} steps",
        "learning rate 0, frozen, or gradients of 0"),
    "replicas_differ": Kind("invalid", "ranks {first} and {other} end with other parameters",
        "they lie {share:.2g} of their norm apart: gradients were not averaged (DDP averages those "
        "of loss.backward() alone)"),
    "records_contradict": Kind("invalid", "{contradiction}"),
    "loss_not_finite": Kind("invalid", "{loss}"),
    "superlinear": Kind("invalid", "more than linear: efficiency {efficiency:factor}{clock}",
        "nothing measured explains it: the single device does other work, or something slowed it"),
    "invalid_baseline": Kind("invalid", "its baseline {baseline} is invalid: {reason}"),
    "contention": Kind("undecided", "other processes held the cores of {sides}",
        "speedup {quiet} without that; measure again on a quiet host"),
    "learns_less": Kind("doubt", "it learns less: {loss} is {ratio:factor} times the single "
        "device's", "at {where}, {interval}"),
    "fell_back": Kind("doubt", "steps ran {ran}, not {requested} as asked for", "{because}"),
    "disturbed": Kind("doubt", "other processes took over {percent:g} % of the cores in {hit} of "
        "{runs} runs", "too many to set aside"),
    "above_linear": Kind("doubt", "more than linear: efficiency {efficiency:factor}",
        "few trainings are"),
    "nothing_sent": Kind("doubt", "DDP sent no gradients", "none came through loss.backward(): "
        "either the loop averages them itself, or nobody does"),
    "few_untrained": Kind("doubt", "{steps:,} of {of:,} steps trained nothing",
        "training_step returned no loss in them, so their time is not that of training"),
    "medians": Kind("doubt", "speedup {by_means:factor} by mean steps, {by_medians:factor} by "
        "median ones", "long steps make the mean {multi:factor} medians on several devices and "
        "{single:factor} on one; verdict and cost are of the mean"),
    "long_step": Kind("doubt", "single steps took seconds", "{named} (median {median_ms:.3g} ms); "
        "{held}"),
    "unsteady": Kind("doubt", "steps never got steady", "{warm_up}"),
    "set_aside": Kind("doubt", "{count} of {repeats} runs are set aside", "{reasons}"),
    "clocks": Kind("doubt", "speedup {measured:factor} may be {equal:factor} at equal SM clocks",
        "{single_mhz:,.0f} MHz on one device, {multi_mhz:,.0f} on several; less far where kernels "
        "wait for memory"),
    "replaced": Kind("doubt", "{line}"),
    "few_runs": Kind("doubt", "{warning}"),
    "unequal_samples": Kind("doubt", "losses of {workload} were reached at unequal samples",
        "{least:,} to {most:,}: weigh that where rows are ranked by them"),
    "allocator": Kind("doubt", "the allocator emptied its cache and tried again", "{ranks} times; "
        "a smaller batch_size, execution.activation_checkpointing=true or strategy=fsdp needs "
        "none"),
    "outliers": Kind("doubt", "{count} of {runs} runs lie far out", "modified Z-score beyond 3.5; "
        "with them {whole} samples/s, without {without}"),
    "records_damaged": Kind("doubt", "{problem}"),
    "shards_incomplete": Kind("doubt", "{explanation}"),
    "imbalance": Kind("doubt", "rank {rank} is waited for", "{explanation}; {advice}"),
    "throttled": Kind("doubt", "{device} was held back by {reasons}", "{often}"),
    "alert": Kind("doubt", "{alert}"),
    "counted_batch": Kind("doubt", "{times:factor}x the global batch of {batch:,} was counted",
        "{rate:,.6g} samples/s at {step_ms:.3g} ms a step count {counted:.4g} samples: one "
        "replica's share, or a global figure multiplied once more"),
    "unsynchronised_timing": Kind("doubt", "communication takes longer than the step",
        "{communication_ms:.3g} ms stand inside a step of {step_ms:.3g} ms: the timer enclosed "
        "other work, or did not wait"),
    "rank_on_other_gpu": Kind("doubt", "a rank has a context on another's GPU",
        "rank {ranks} also on GPU {gpus}{sizes}"),
    "foreign_process": Kind("doubt", "the GPUs are not the ranks' alone",
        "{named} is none of the cell's ranks"),
    "extra_memory_on_gpu0": Kind("doubt", "GPU {gpu} holds more beside its allocator than the "
        "others", "{extra_mib:,.0f} MiB, {per_other_rank_mib:,.0f} for each other rank (a CUDA "
        "context takes some 500)"),
    "common_stall": Kind("doubt", "all ranks stopped at once", "{named} after the "
        "first step began; a median step takes {median_step_ms:,.3g} ms"),
    "missing": Kind("note", "{figure} is missing", "{why}"),
    "power_cap": Kind("note", "{device} was held back by its power cap",
        "no fault in a GPU that works hard"),
    "not_told": Kind("note", "{codes:words} cannot be told", "{why}"),
}  # fmt: skip
"""Every code, the gravest first: a terminal names the first that concerns a configuration."""


class _Words(string.Formatter):
    """Templates that write a ratio as tables do, ``{speedup:factor}``, and a code in words."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec == "factor":
            return factor(value)
        if format_spec == "words":
            return str(value).replace("_", " ")
        return str(super().format_field(value, format_spec))


@dataclass(frozen=True)
class Remark:
    """What a rule found."""

    code: str
    figures: Mapping[str, Any] = field(default_factory=dict)
    """By the names in the words of the code; what has no number in words."""
    about: str = ""
    """``config_id`` of whose figures it speaks; empty: the whole sweep's."""
    run: str = ""
    """The cell's name, where it holds of one run."""

    @property
    def gravity(self) -> Gravity:
        return WORDS[self.code].gravity

    @property
    def brief(self) -> str:
        """In a few words, for a terminal."""
        return _Words().vformat(WORDS[self.code].brief, (), self.figures)

    @property
    def text(self) -> str:
        more = _Words().vformat(WORDS[self.code].more, (), self.figures)
        return f"{self.brief}: {more}" if more else self.brief
