"""What to change against a loss: settings to add to the command, or words where none helps."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import yaml

from scalewise.analysis.configuration import Configuration
from scalewise.analysis.loss_budget import LostTime, mean_of_devices, reduces_redundantly
from scalewise.analysis.model import setting
from scalewise.config import ConfigError, build_cell, conf_dir

BUSY_SMS_PERCENT: Final = 80.0
"""A large matrix product on an H200 reads 95 %, GPT-2 124M 84 to 90 %; small kernels far less."""

BUSY_TENSOR_PERCENT: Final = 50.0
"""A large bf16 matrix product on an H200 reads 92 %."""

BUSY_DRAM_PERCENT: Final = 60.0
"""A stream copy on an H200 reads 80 to 90 %: beyond two thirds of that, kernels wait for DRAM."""

_PER_STEP: Final = ("batch_size", "accumulate_grad_batches")
"""Keys that change the samples of a step: gains are then of as many samples, and not of a step."""


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


def changes_samples(override: str) -> bool:
    """Whether a step of other samples comes of it, so that its time is another step's."""
    return override.partition("=")[0] in _PER_STEP


def remedy(config: Configuration, loss: LostTime) -> Remedy:
    """What to change against ``loss``, by what was measured of ``config``."""
    larger = _larger(config, "batch_size")
    match loss.cause:
        case "device_work":
            return work_remedy(config)
        case "host_late":
            return Remedy(
                "launch each step as a whole (execution=cudagraph), or give each launch more work "
                "(a larger batch_size)",
                ("execution=cudagraph", *larger),
            )
        case "transfer" if reduces_redundantly(config):
            return Remedy(
                "strategy.no_sync=true: reduce once an optimizer step", ("strategy.no_sync=true",)
            )
        case "transfer":
            return Remedy(
                "send less (strategy.compression=bf16 or powersgd), or less often "
                "(strategy=local_sgd, or accumulate_grad_batches=4 with a larger batch); see what "
                "the links give: scalewise doctor",
                ("strategy.compression=bf16", "accumulate_grad_batches=4"),
                "see what the links give (scalewise doctor)",
            )
        case "waiting" if loss.rank is None:
            return Remedy(
                "a quieter host, or longer steps (a larger batch_size): the ranks differ in turns",
                larger,
                "use a quieter host",
            )
        case "waiting":
            return Remedy(
                f"run without the device of rank {loss.rank} (hardware.gpus=[...]) and compare; or "
                "give it a share it can keep up with (strategy=heterogeneous)",
                deed=f"compare without the device of rank {loss.rank} (hardware.gpus=[...])",
            )
        case "loader":
            return Remedy(
                "load beside the training (dataset.loader.num_workers=4), ahead of it "
                "(dataset.loader.device_prefetch=2), or keep the data on the device "
                "(dataset.loader.device_resident=true)",
                ("dataset.loader.num_workers=4", *_on_device(config)),
            )
        case "copy":
            return Remedy(
                "copy ahead (dataset.loader.device_prefetch=2), or keep the data on the device "
                "(dataset.loader.device_resident=true)",
                _on_device(config),
            )
        case "optimizer":
            return Remedy(
                "divide it among the devices (strategy=fsdp), or step less often "
                "(accumulate_grad_batches=4 with a larger batch)",
                ("accumulate_grad_batches=4",),
            )
        case "between_steps":
            return Remedy(
                "log less often (log_every_n_steps), and take work out of callbacks",
                ("log_every_n_steps=100",),
                "take work out of callbacks",
            )
        case "stages":
            return Remedy(
                "more microbatches (strategy.microbatches), or a cut that balances the stages",
                _larger(config, "strategy.microbatches"),
                "balance the stages",
            )
        case "contention":
            return Remedy(
                "more cores for each rank, fewer loader workers, or a quieter host",
                deed="use a quieter host, or more cores a rank",
            )
        case "long_steps":
            return Remedy(
                "find what the host does then: validation, checkpoints, logging, other users",
                deed="find what the host does in them",
            )
        case "clocks":
            return Remedy(
                "cooling and power first; the figures hold for these clocks only",
                deed="look at cooling and power",
            )
        case _:
            return Remedy(
                "profile a few steps (profile.trace=true) and look",
                deed="look into a few steps with profile.trace=true",
            )


def work_remedy(config: Configuration) -> Remedy:
    """What makes forward and backward shorter, by how busy the GPU's parts were while timed."""
    if _hides_collectives(config):
        return Remedy(
            "strategy=ddp where a device holds the model: these phases hold the collectives too",
            ("strategy=ddp",),
        )
    sms, tensor, dram = (
        mean_of_devices(config, name)
        for name in ("sm_activity_percent", "tensor_activity_percent", "dram_activity_percent")
    )
    quicker = tuple(
        f"{group}={options[0]}" for group, options in _QUICKER if config.name(group) not in options
    )
    if quicker and dram is not None and dram > BUSY_DRAM_PERCENT:
        return Remedy(f"{' or '.join(quicker)}: the kernels wait for memory", quicker)
    larger = _larger(config, "batch_size")
    more_each = "a larger batch_size" + ("" if config.devices == 1 else ", or fewer devices")
    if sms is not None and sms < BUSY_SMS_PERCENT:
        return Remedy(f"{more_each}: the kernels are too small to fill the GPU", larger)
    if quicker and tensor is not None and tensor < BUSY_TENSOR_PERCENT:
        return Remedy(f"{' or '.join(quicker)}: the tensor cores are mostly idle", quicker)
    return Remedy(more_each, larger)


_QUICKER: Final = (
    ("precision", ("bf16-mixed", "fp16-mixed", "fp8")),
    ("execution", ("compile", "cudagraph_compiled")),
)
"""Less traffic and more use of the tensor cores: what to try, and what is as good already."""


def _hides_collectives(config: Configuration) -> bool:
    """Whether ranks exchange tensors inside forward and backward, as those of FSDP do.

    Nothing is known of steps whose phases were not timed, as those replayed in one graph.
    """
    timed = [
        run.anatomy
        for run in config.runs
        if run.anatomy is not None and run.anatomy.ranks[-1].phases_ms["forward"] is not None
    ]
    return config.devices != 1 and bool(timed) and all(one.communication is None for one in timed)


def _on_device(config: Configuration) -> tuple[str, ...]:
    """A setting of the loader that only GPUs have."""
    if config.is_cpu:
        return ()
    return ("dataset.loader.device_prefetch=2",)


def _larger(config: Configuration, key: str) -> tuple[str, ...]:
    """Twice the number that was configured; nothing where there is none."""
    found = _setting(config, key)
    return (f"{key}={2 * found}",) if isinstance(found, int) else ()


def _setting(config: Configuration, key: str) -> Any:
    """The recorded value of a dotted key, of a group its option; None where there is none."""
    found = setting(config.cells[0].config, key)
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
    *above, last = key.split(".")
    file = conf_dir() / key / f"{text}.yaml"
    changed = dict(recorded)
    inner = changed
    for name in above:
        inner[name] = dict(inner.get(name) or {})
        inner = inner[name]
    inner[last] = yaml.safe_load(file.read_text() if file.is_file() else text)
    try:
        build_cell(recorded)
    except ConfigError:
        return False
    try:
        build_cell(changed)
    except ConfigError:
        return True
    return False
