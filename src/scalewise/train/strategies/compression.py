"""Gradients sent in fewer bytes than they are computed in: torch's own communication hooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket

    from scalewise.train.callbacks.traffic import GradientHook

Compression = Literal["none", "fp16", "bf16", "powersgd"]

FEWEST_POWERSGD_STEPS = 2
"""DDP rebuilds its buckets after the first step: PowerSGD has to learn them later than that."""


def compressing_hook(
    compression: Compression, powersgd_rank: int, powersgd_start_step: int
) -> GradientHook | None:
    """The hook that sends gradients so; None where they are sent as they are.

    ``fp16`` and ``bf16`` round each gradient before the all-reduce, which also sums in that format.
    ``powersgd`` sends a matrix of gradients as two thin ones of rank ``powersgd_rank`` and adds
    what was lost to the next step's gradients (Vogels et al. 2019, arXiv:1905.13727).
    """
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    from scalewise.train.callbacks.traffic import GradientHook

    if compression == "none":
        return None
    if compression == "powersgd":
        return _powersgd(powersgd_rank, powersgd_start_step)
    hook = default_hooks.fp16_compress_hook
    if compression == "bf16":
        hook = default_hooks.bf16_compress_hook
    return GradientHook(hook, None, lambda bucket: 2 * bucket.buffer().numel())


def _powersgd(rank: int, start_step: int) -> GradientHook:
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import (
        PowerSGDState,
        powerSGD_hook,
    )

    from scalewise.train.callbacks.traffic import GradientHook

    state = PowerSGDState(
        process_group=None,
        matrix_approximation_rank=rank,
        start_powerSGD_iter=start_step,
        # 0 is torch's default and divides by zero for a gradient that is zero in every entry.
        orthogonalization_epsilon=1e-8,
    )
    sent = 0

    def payload_bytes(bucket: GradBucket) -> int:
        nonlocal sent
        before, sent = sent, state.total_numel_after_compression
        buffer = bucket.buffer()
        # The first steps are all-reduced whole, and torch counts them as nothing.
        elements = sent - before if sent > before else buffer.numel()
        return int(elements) * buffer.element_size()

    return GradientHook(powerSGD_hook, state, payload_bytes)
