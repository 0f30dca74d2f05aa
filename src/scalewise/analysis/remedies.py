"""What to change against a loss: settings to add to the command, or words where none helps."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

from scalewise.analysis.configuration import Configuration
from scalewise.analysis.loss_budget import LostTime, reduces_redundantly
from scalewise.config import ConfigError, build_cell, check_samples, conf_dir

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
"""Keys without effect beside a LightningDataModule, whose reader refuses them."""
OWN_BATCHES: Final = "change the batch size of your DataModule, which makes its own batches"
_IN_OWN_DATA: Final = {
    "batch_size": OWN_BATCHES,
    "dataset.loader.num_workers": "give the loader of your DataModule worker processes",
}
"""What a user changes in a LightningDataModule of his own instead of a setting."""


@dataclass(frozen=True)
class Remedy:
    """What may make a loss smaller."""

    words: str
    """All that may help, in one sentence without its full stop."""
    overrides: tuple[str, ...] = ()
    """What to try first, as typed; each is tried on its own. Empty where no setting helps."""
    deed: str = ""
    """What to do in few words, where no setting does it."""

    def __str__(self) -> str:
        return self.words


@dataclass(frozen=True)
class Way:
    """One thing that may help."""

    what: str
    """As one does it in a script too."""
    override: str = ""
    """The setting that does it; empty where none does."""
    is_next: bool = True
    """Whether it is proposed alone, and not only named."""


def changes_samples(override: str) -> bool:
    """Whether a step of other samples comes of it, so that its time is another step's."""
    return override.partition("=")[0] in _PER_STEP


def remedy(config: Configuration, loss: LostTime) -> Remedy:
    """What to change against ``loss``, by what was measured of ``config``."""
    more_each = Way("a larger batch", _larger(config, "batch_size"))
    less_often = Way("more samples a step", "accumulate_grad_batches=4")
    half = Way("send fewer bytes", "strategy.compression=bf16")
    fewer = (half,) if _halving_pays(config, loss) else ()
    match loss.cause:
        case "device_work" if _computes_what_one_did(config):
            ways = (*fewer, more_each, less_often)
            return _remedy(config, ways, why="these kernels run beside collectives")
        case "device_work":
            return work_remedy(config)
        case "host_late":
            whole = Way("launch each step as a whole, as a CUDA graph", "execution=cudagraph")
            return _remedy(config, (whole, more_each))
        case "transfer" if reduces_redundantly(config):
            once = Way("reduce once an optimizer step", "strategy.no_sync=true")
            return _remedy(config, (once,))
        case "transfer":
            # CPU devices have no links of their own.
            links = () if config.is_cpu else (Way("see what the links give (scalewise doctor)"),)
            seldom = Way("send less often", "strategy=local_sgd", is_next=False)
            ways = (*fewer, seldom, less_often, *links)
            return _remedy(config, ways, ways[-1].what)
        case "waiting" if loss.rank is None:
            return _remedy(config, (Way("use a quieter host"), more_each), "use a quieter host")
        case "waiting":
            without = f"compare without the device of rank {loss.rank} (hardware.gpus=[...])"
            return _remedy(config, (Way(without),), without)
        case "loader":
            workers = Way("load beside the training", "dataset.loader.num_workers=4")
            return _remedy(config, (*_one_thread(config), workers, *_on_device(config)))
        case "copy":
            return _remedy(config, _on_device(config))
        case "optimizer":
            divided = Way("divide it among the devices", "strategy=fsdp", is_next=False)
            return _remedy(config, (divided, less_often))
        case "callbacks":
            seldom = Way("let callbacks act less often")
            return _remedy(config, (seldom,), seldom.what)
        case "between_steps":
            lean = Way("take work out of the loop and hooks")
            logs = Way("log less often", "log_every_n_steps=100")
            return _remedy(config, (logs, lean), lean.what)
        case "stages":
            key = "strategy.microbatches"
            larger = _larger(config, key)
            more = Way("more microbatches" if larger else f"more microbatches ({key})", larger)
            return _remedy(config, (more, Way("balance the stages")), "balance the stages")
        case "contention":
            words = "more cores for each rank, fewer loader workers, or a quieter host"
            return Remedy(words, deed="use a quieter host, or more cores a rank")
        case "long_steps":
            words = "find what the host does then: validation, checkpoints, logging, other users"
            return Remedy(words, deed="find what the host does in long steps")
        case "clocks":
            words = "cooling and power first; the figures hold for these clocks only"
            return Remedy(words, deed="look at cooling and power")
        case _:
            look = Way("look into a few steps of a profile", "profile.trace=true", is_next=False)
            return _remedy(config, (look,), f"{look.what} (profile.trace=true)")


def work_remedy(config: Configuration) -> Remedy:
    """What makes forward and backward shorter, by how busy the GPU's parts were while timed."""
    if _hides_collectives(config):
        own = Way("replicas, where a device holds the model", "strategy=ddp")
        return _remedy(config, (own,), why="these phases hold the collectives too")
    sms, tensor, dram = (
        config.mean_of_devices(name)
        for name in ("sm_activity_percent", "tensor_activity_percent", "dram_activity_percent")
    )
    quicker = tuple(
        Way(what, f"{group}={options[0]}")
        for group, what, options in _QUICKER
        if config.name(group) not in options
    )
    if quicker and dram is not None and dram > BUSY_DRAM_PERCENT:
        return _remedy(config, quicker, why="the kernels wait for memory")
    larger = Way("a larger batch", _larger(config, "batch_size"))
    more_each = (larger,) if config.devices == 1 else (larger, Way("fewer devices"))
    if sms is not None and sms < BUSY_SMS_PERCENT:
        return _remedy(config, more_each, why="the kernels are too small to fill the GPU")
    if quicker and tensor is not None and tensor < BUSY_TENSOR_PERCENT:
        return _remedy(config, quicker, why="the tensor cores are mostly idle")
    return _remedy(config, more_each)


_QUICKER: Final = (
    ("precision", "a narrower number format", ("bf16-mixed", "fp16-mixed")),
    ("execution", "compiled steps", ("compile", "cudagraph_compiled")),
)
"""Less traffic and more use of the tensor cores: what to try, and what is as good already."""


def _remedy(config: Configuration, ways: Sequence[Way], deed: str = "", why: str = "") -> Remedy:
    """Those of ``ways`` that ``config`` can go, worded for a script and for a user's own data."""
    said, overrides, in_own_data = [], [], ""
    for way in ways:
        if config.has_own_settings or not way.override:
            said.append(way.what)
        elif not is_refused(config, way.override):
            said.append(f"{way.what} ({way.override})")
            overrides += [way.override] if way.is_next else []
        elif config.makes_own_batches and (own := _IN_OWN_DATA.get(way.override.partition("=")[0])):
            said.append(own)
            in_own_data = in_own_data or own
    words = ", or ".join(said) or deed or "no setting helps"
    return Remedy(f"{words}: {why}" if why else words, tuple(overrides), deed or in_own_data)


def _hides_collectives(config: Configuration) -> bool:
    """Whether ranks exchange tensors inside forward and backward, as far as these were timed."""
    timed = [
        run.anatomy
        for run in config.runs
        if run.anatomy is not None and run.anatomy.ranks[-1].phases_ms["forward"] is not None
    ]
    return config.devices != 1 and bool(timed) and all(one.communication is None for one in timed)


def _halving_pays(config: Configuration, loss: LostTime) -> bool:
    """Whether half of ``loss`` is more than gradients take to be made bf16 and back on a GPU."""
    trainable = max((rank.parameters_trainable for rank in config.rank_summaries), default=0)
    return config.is_cpu or loss.ms / 2 > 4 * trainable / (_CONVERTED_GB_PER_S * 1e6)


def _computes_what_one_did(config: Configuration) -> bool:
    """Whether each GPU has the samples of a single one, and reduces gradients beside the work."""
    is_replica = config.setting("strategy.kind") == "ddp" and config.devices != 1
    return is_replica and not config.is_cpu and config.setting("scaling") == "weak"


def _on_device(config: Configuration) -> tuple[Way, ...]:
    """Settings of the loader that only GPUs have."""
    if config.is_cpu:
        return ()
    return (
        Way("copy ahead", "dataset.loader.device_prefetch=2"),
        Way("keep tensors on the device", "dataset.loader.device_resident=true", is_next=False),
    )


def _one_thread(config: Configuration) -> tuple[Way, ...]:
    """Where its ranks' other threads fill most of their cores, as those of operators that spin."""
    busy = (
        (rank.other_threads_cpu_ms_per_step or 0.0) / (run.value("step_time_ms") or math.inf)
        for run in config.runs
        for rank in run.ranks
    )
    if config.is_cpu or max(busy, default=0.0) < SPINNING_CORES:
        return ()
    return (Way("start with OMP_NUM_THREADS=1, as threads that spin keep its cores busy"),)


def _larger(config: Configuration, key: str) -> str:
    """Twice the number that was configured; empty where there is none."""
    found = _setting(config, key)
    return f"{key}={2 * found}" if isinstance(found, int) else ""


def _setting(config: Configuration, key: str) -> Any:
    """The recorded value of a dotted key, of a group its option; None where there is none."""
    found = config.setting(key)
    return found.get("name") if isinstance(found, Mapping) else found


def override_holds(config: Configuration, override: str) -> bool:
    """Whether ``config`` was run as ``override`` has it."""
    key, _, text = override.partition("=")
    return bool(_setting(config, key) == _parsed(text))


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
    if not _is_sound(config, recorded):
        return False
    return not _is_sound(config, changed)


def _is_sound(config: Configuration, recorded: Mapping[str, Any]) -> bool:
    try:
        # How cells were run changes no result, and an earlier version had other keys for it.
        cell = build_cell({**recorded, "sweep": {}})
        check_samples(cell)
    except ConfigError:
        return False
    # Uneven shares are cut by our sampler, which no LightningDataModule has.
    return not (config.makes_own_batches and cell.strategy.UNEVEN)
