"""What to change against a loss, as it is typed: to be tried, not believed.

A remedy acts on the time that was measured. Whether it pays, a sweep of the change against what
there is has to say.
"""

from __future__ import annotations

from statistics import mean
from typing import Final

from scalewise.analysis.configuration import Configuration
from scalewise.analysis.loss_budget import Loss, reduces_redundantly

BUSY_SMS_PERCENT: Final = 80.0
"""A large matrix product on an H200 reads 95 %, GPT-2 124M 84 to 90 %; small kernels far less."""

BUSY_TENSOR_PERCENT: Final = 50.0
"""A large bf16 matrix product on an H200 reads 92 %."""

BUSY_DRAM_PERCENT: Final = 60.0
"""A stream copy on an H200 reads 80 to 90 %: beyond two thirds of that, kernels wait for DRAM."""

_PLAIN: Final = {
    "loader": "load beside the training (dataset.loader.num_workers=4), ahead of it "
    "(dataset.loader.device_prefetch=2), or keep the data on the device "
    "(dataset.loader.device_resident=true)",
    "copy": "copy ahead (dataset.loader.device_prefetch=2), or keep the data on the device "
    "(dataset.loader.device_resident=true)",
    "optimizer": "divide it among the devices (strategy=fsdp), or step less often "
    "(accumulate_grad_batches=4 with a larger batch)",
    "between_steps": "log less often (log_every_n_steps), and take work out of callbacks",
    "stages": "more microbatches (strategy.microbatches), or a cut that balances the stages",
    "contention": "more cores for each rank, fewer loader workers, or a quieter host",
    "long_steps": "find what the host does then: validation, checkpoints, logging, other users",
    "clocks": "cooling and power first; the figures hold for these clocks only",
    "unexplained": "profile a few steps (profile.trace=true) and look",
}  # fmt: skip


def remedy(config: Configuration, loss: Loss) -> str:
    """What to change against ``loss``, by what was measured of ``config``."""
    if loss.cause == "device_work":
        return work_remedy(config)
    if loss.cause == "host_late":
        return (
            "take the host out of the step (execution=cudagraph, or execution=compile), or give "
            "each launch more work (a larger batch_size)"
        )
    if loss.cause == "transfer":
        if reduces_redundantly(config):
            return "strategy.no_sync=true: reduce once an optimizer step"
        return (
            "send less (strategy.compression=bf16 or powersgd), or less often (strategy=local_sgd, "
            "or accumulate_grad_batches=4 with a larger batch); see what the links give: "
            "scalewise doctor"
        )
    if loss.cause == "waiting":
        if loss.rank is None:
            return (
                "a quieter host, or longer steps (a larger batch_size): the ranks differ in turns"
            )
        return (
            f"run without the device of rank {loss.rank} (hardware.gpus=[...]) and compare; or "
            "give it a share it can keep up with (strategy=heterogeneous)"
        )
    return _PLAIN[loss.cause]


def work_remedy(config: Configuration) -> str:
    """What makes forward and backward shorter, by how busy the GPU's parts were while timed."""
    if _hides_collectives(config):
        return "strategy=ddp where a device holds the model: these phases hold the collectives too"
    sms, tensor, dram = (
        _activity(config, name)
        for name in ("sm_activity_percent", "tensor_activity_percent", "dram_activity_percent")
    )
    quicker = [f"{group}={option}" for group, option in _QUICKER if config.name(group) != option]
    if quicker and dram is not None and dram > BUSY_DRAM_PERCENT:
        return f"{' or '.join(quicker)}: the kernels wait for memory"
    more_each = "a larger batch_size" + ("" if config.devices == 1 else ", or fewer devices")
    if sms is not None and sms < BUSY_SMS_PERCENT:
        return f"{more_each}: the kernels are too small to fill the GPU"
    if quicker and tensor is not None and tensor < BUSY_TENSOR_PERCENT:
        return f"{' or '.join(quicker)}: the tensor cores are mostly idle"
    return more_each


def _hides_collectives(config: Configuration) -> bool:
    """Whether ranks exchange tensors inside forward and backward, as those of FSDP do."""
    anatomies = [run.anatomy for run in config.runs if run.anatomy is not None]
    return config.devices != 1 and all(one.communication is None for one in anatomies)


_QUICKER: Final = (("precision", "bf16-mixed"), ("execution", "compile"))
"""Less traffic and more use of the tensor cores, if not chosen already."""


def _activity(config: Configuration, name: str) -> float | None:
    """Mean percent over the runs that have it."""
    known = [
        value
        for run in config.runs
        if run.usage is not None and (value := run.usage.mean(name)) is not None
    ]
    return mean(known) if known else None
