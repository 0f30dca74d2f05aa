"""What to change against a loss: settings to add to the command, or words where none helps."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import yaml

from scalewise.analysis.comparability import grouped
from scalewise.analysis.configuration import Configuration
from scalewise.analysis.loss_budget import LossBudget, LostTime, reduces_redundantly, worth_saying
from scalewise.config import ConfigError, build_cell, check_samples, conf_dir
from scalewise.records import build, words_beside

BUSY_SMS_PERCENT: Final = 80.0
"""A large matrix product on an H200 reads 95 %, GPT-2 124M 84 to 90 %; small kernels far less."""
BUSY_TENSOR_PERCENT: Final = 50.0
"""A large bf16 matrix product on an H200 reads 92 %."""
BUSY_DRAM_PERCENT: Final = 60.0
"""A stream copy on an H200 reads 80 to 90 %: beyond two thirds of that, kernels wait for DRAM."""
SPINNING_CORES: Final = 6.0
"""Kept busy beside the training thread: OpenMP's threads spin between two operators on CPUs. In the
kept sweeps of GPUs those that gathered batches kept 7 to 16 of 16 busy, all others below 4.4."""
_CONVERTED_GB_PER_S: Final = 390.0
"""Gradients made bf16 and back: steps of two H100s grew by 3.6 ms for 1.42 GB (measured.md)."""
_PER_STEP: Final = ("batch_size", "accumulate_grad_batches")
"""Keys that change the samples of a step: gains are then of as many samples, and not of a step."""
_OF_BATCHES: Final = ("batch_size", "dataset.loader")
"""Keys without effect beside loaders of the user's, whose reader refuses them."""
OWN_BATCHES: Final = "change the batch size of your train_dataloader, which makes its own batches"
_IN_OWN_DATA: Final = {
    "batch_size": OWN_BATCHES,
    "dataset.loader.num_workers": "let your train_dataloader load beside the training",
}
"""What a user changes in loaders of his own instead of a setting."""


@dataclass(frozen=True)
class Remedy:
    """What may make a loss smaller."""

    words: str
    """All that may help, in one sentence without its full stop."""
    overrides: tuple[str, ...] = ()
    """What to try first, as typed; each is tried on its own. Empty where no setting helps."""
    deed: str = ""
    """What to do in few words, where no setting does it."""


@dataclass(frozen=True)
class Remedies:
    """What may help a configuration, and what of it no row of its model has."""

    against: tuple[tuple[LostTime, Remedy], ...]
    """Each loss worth saying, the largest first, with what may make it smaller."""
    untried: tuple[LostTime, Remedy] | None
    """Of these the first that something helps against, with the override to try."""
    work: Remedy | None
    """What makes forward and backward shorter, where no loss is a limit."""
    untried_work: Remedy | None


Where = Literal["automatic steps", "half pays", "GPUs", "cores", "several", "spinning", "divided"]


@dataclass(frozen=True)
class _Way:
    """One thing that may help, as remedies.toml has it."""

    what: str
    setting: str = ""
    unless: tuple[str, ...] = ()
    where: Where | None = None
    is_next: bool = True


@dataclass(frozen=True)
class _Kind:
    """What helps against a cause, or against one kind of it."""

    ways: tuple[_Way, ...]
    deed: str = ""
    why: str = ""


_SAID: Final = words_beside(__file__, dict[str, dict[str, dict[str, Any]]])
_KINDS: Final = {
    name: build(_Kind, {**kind, "ways": [_SAID["ways"][way] for way in kind["ways"]]})
    for name, kind in _SAID["remedies"].items()
}


def changes_samples(override: str) -> bool:
    """Whether a step of other samples comes of it, so that its time is another step's."""
    return override.partition("=")[0] in _PER_STEP


def find_remedies(
    measured: Sequence[Configuration], budgets: Mapping[str, LossBudget]
) -> dict[str, Remedies]:
    """What to try, by ``config_id``."""
    found = {}
    models = grouped(measured, lambda config: config.name("model"))
    for config in measured:
        budget, alike = budgets.get(config.config_id), models[config.name("model")]
        against = tuple((loss, remedy(config, loss)) for loss in worth_saying(budget))
        each = ((loss, _untried(alike, what)) for loss, what in against)
        first = next(((loss, what) for loss, what in each if what), None)
        work = work_remedy(config) if budget and not budget.limits else None
        found[config.config_id] = Remedies(against, first, work, work and _untried(alike, work))
    return found


def _untried(alike: Sequence[Configuration], found: Remedy) -> Remedy | None:
    """With its first override that no row of the model has and that is not refused."""
    for override in found.overrides:
        if not any(override_holds(one, override) for one in alike):
            return Remedy(found.words, (override,))
    return Remedy(found.words, (), found.deed) if found.deed else None


def remedy(config: Configuration, loss: LostTime) -> Remedy:
    """What to change against ``loss``, by what was measured of ``config``."""
    match loss.cause:
        case "device_work" if _computes_what_one_did(config):
            return _remedy(config, "work_beside_collectives", loss)
        case "device_work":
            return work_remedy(config)
        case "transfer" if reduces_redundantly(config):
            return _remedy(config, "redundant_transfer", loss)
        case "transfer" if config.is_cpu:
            return _remedy(config, "transfer_between_cpus", loss)
        case "waiting" if loss.rank is not None and not config.is_cpu:
            return _remedy(config, "waiting_for_one", loss)
        case "between_steps" if loss.by_script:
            return Remedy("")  # nobody knows what its loop does
        case cause:
            return _remedy(config, cause, loss)


def work_remedy(config: Configuration) -> Remedy:
    """What makes forward and backward shorter, by how busy the GPU's parts were while timed."""
    if config.hides_collectives:
        return _remedy(config, "work_with_collectives")
    sms, tensor, dram = (
        config.mean_of_devices(name)
        for name in ("sm_activity_percent", "tensor_activity_percent", "dram_activity_percent")
    )
    can_be_quicker = any(_ways(config, "memory_bound"))
    if can_be_quicker and dram is not None and dram > BUSY_DRAM_PERCENT:
        return _remedy(config, "memory_bound")
    if sms is not None and sms < BUSY_SMS_PERCENT:
        return _remedy(config, "small_kernels")
    if can_be_quicker and tensor is not None and tensor < BUSY_TENSOR_PERCENT:
        return _remedy(config, "idle_tensor_cores")
    return _remedy(config, "work")


def _ways(config: Configuration, kind: str, loss: LostTime | None = None) -> Iterator[_Way]:
    """Those that help where ``config`` ran, and are not gone already."""
    holds: Mapping[Where, Callable[[], bool]] = {
        "half pays": lambda: loss is not None and _halving_pays(config, loss),
        "GPUs": lambda: not config.is_cpu,
        "cores": lambda: not config.is_cpu or len(config.rank_summaries[0].device.cores) != 1,
        "several": lambda: config.devices != 1,
        "divided": lambda: config.hides_collectives,
        "automatic steps": lambda: not _optimizes_by_hand(config),
        "spinning": lambda: _has_spinning_threads(config),
    }
    for way in _KINDS[kind].ways:
        is_chosen = config.name(way.setting.partition("=")[0]) in way.unless
        if not is_chosen and (way.where is None or holds[way.where]()):
            yield way


def _remedy(config: Configuration, kind: str, loss: LostTime | None = None) -> Remedy:
    """Those ways that ``config`` can go, worded for a script and for a user's own data."""
    said, overrides, in_own_data = [], [], ""
    for way in _ways(config, kind, loss):
        key, override = way.setting.partition("=")[0], _override(config, way.setting)
        if config.has_own_settings or not key:
            said.append(way.what)
        elif not override:
            said.append(f"{way.what} ({key})")
        elif not is_refused(config, override):
            said.append(f"{way.what} ({override})")
            overrides += [override] if way.is_next else []
        elif config.makes_own_batches and (own := _IN_OWN_DATA.get(key)):
            said.append(own)
            in_own_data = in_own_data or own
    told, rank = _KINDS[kind], loss and loss.rank
    trace = "" if config.has_own_settings else " (profile.trace=true)"  # which no script sees
    words, deed = (t.format(rank=rank, trace=trace) for t in (", or ".join(said), told.deed))
    words = (words or deed or "no setting helps") + (f": {told.why}" if told.why else "")
    return Remedy(words, tuple(overrides), deed or in_own_data)


def _halving_pays(config: Configuration, loss: LostTime) -> bool:
    """Whether half of ``loss`` is more than gradients take to be made bf16 and back on a GPU."""
    trainable = max((rank.parameters_trainable for rank in config.rank_summaries), default=0)
    return config.is_cpu or loss.ms / 2 > 4 * trainable / (_CONVERTED_GB_PER_S * 1e6)


def _computes_what_one_did(config: Configuration) -> bool:
    """Whether each GPU has the samples of a single one, and reduces gradients beside the work."""
    is_replica = config.setting("strategy.kind") == "ddp" and config.devices != 1
    return is_replica and not config.is_cpu and config.setting("scaling") == "weak"


def _optimizes_by_hand(config: Configuration) -> bool:
    """Of a module of one's own, whose steps without a loss are counted unless it does."""
    own = not str(config.setting("model._target_") or "scalewise.").startswith("scalewise.")
    return own and all(rank.steps_without_loss is None for rank in config.rank_summaries)


def _has_spinning_threads(config: Configuration) -> bool:
    """Whether its ranks' other threads fill most of their cores, as operators' that spin do."""
    busy = (
        (rank.other_threads_cpu_ms_per_step or 0.0) / (run.value("step_time_ms") or math.inf)
        for run in config.runs
        for rank in run.ranks
    )
    return not config.is_cpu and max(busy, default=0.0) >= SPINNING_CORES


def _override(config: Configuration, setting: str) -> str:
    """As one types it; empty where there is no number to double."""
    key, _, value = setting.partition("=")
    if value != "x2":
        return setting
    found = config.setting(key)
    return f"{key}={2 * found}" if isinstance(found, int) else ""


def override_holds(config: Configuration, override: str) -> bool:
    """Whether ``config`` was run as ``override`` has it."""
    key, _, text = override.partition("=")
    found = config.setting(key)
    return bool((found.get("name") if isinstance(found, Mapping) else found) == _parsed(text))


@functools.cache
def _parsed(text: str) -> Any:
    """A large sweep asks for each of few values thousands of times."""
    return yaml.safe_load(text)


def is_refused(config: Configuration, override: str) -> bool:
    """Whether the configuration as it was recorded would be refused with ``override``.

    By the rules by which a run is checked; records that these refuse already tell nothing.
    """
    recorded = config.cells[0].config
    if recorded is None:
        return False
    key, _, text = override.partition("=")
    if config.makes_own_batches and any(key == k or key.startswith(f"{k}.") for k in _OF_BATCHES):
        return True
    *above, last = key.split(".")
    file = conf_dir() / key / f"{text}.yaml"
    changed = dict(recorded)
    inner = changed
    for name in above:
        inner[name] = dict(inner.get(name) or {})
        inner = inner[name]
    inner[last] = yaml.safe_load(file.read_text()) if file.is_file() else _parsed(text)
    return _is_sound(config, recorded) and not _is_sound(config, changed)


def _is_sound(config: Configuration, recorded: Mapping[str, Any]) -> bool:
    try:
        # How cells were run changes no result, and an earlier version had other keys for it.
        cell = build_cell({**recorded, "sweep": {}})
        check_samples(cell)
        if cell.scheduler is not None:
            cell.scheduler.check(cell)
    except (ConfigError, OSError):  # a key on record may be longer than a file's name
        return False
    # Uneven shares are cut by our sampler, which no LightningDataModule has.
    return not (config.makes_own_batches and cell.strategy.UNEVEN)
