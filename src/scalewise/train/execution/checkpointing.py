"""Activation checkpointing: less memory for a second forward pass of each block."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

BLOCK_LISTS = ("blocks", "layers")
"""Names under which a network keeps what it repeats."""


def checkpoint_blocks(network: nn.Module) -> int:
    """Let each block of ``network`` keep its inputs only; returns how many blocks there are.

    Parameters keep their names. Random masks are drawn alike in both passes where there are any.
    Raises ValueError for a network without blocks.
    """
    blocks = repeated_blocks(network)
    if not blocks:
        raise ValueError(
            f"execution.activation_checkpointing: found true, but {type(network).__name__} has no "
            f"list of blocks named {' or '.join(BLOCK_LISTS)}; allowed: a transformer or a ResNet "
            "of scalewise, or a model with such a list"
        )
    for block in blocks:
        block.forward = _checkpointed(block)
    return len(blocks)


def repeated_blocks(network: nn.Module) -> list[nn.Module]:
    """The blocks of ``network``, in order; none where it has no list of them."""
    for name in BLOCK_LISTS:
        found = getattr(network, name, None)
        if isinstance(found, (nn.ModuleList, nn.Sequential)):
            # A list of single layers has nothing inside a block to forget.
            blocks = [part for part in found if any(True for _ in part.children())]
            if blocks:
                return blocks
    return []


def _checkpointed(block: nn.Module) -> Any:
    forward = block.forward
    # Saving the random state costs a copy and cannot be captured: only where it is used.
    random = any(_is_random(part) for part in block.modules())
    norms = [part for part in block.modules() if isinstance(part, _BatchNorm)]
    options: dict[str, Any] = {"preserve_rng_state": random}
    if norms:
        options["context_fn"] = lambda: (contextlib.nullcontext(), _once_counted(norms))

    @functools.wraps(forward)
    def recomputed(*inputs: Any) -> Any:
        if not block.training:
            return forward(*inputs)
        return checkpoint(forward, *inputs, use_reentrant=False, **options)

    return recomputed


def _is_random(part: nn.Module) -> bool:
    rate = getattr(part, "p", None) if isinstance(part, nn.Dropout) else vars(part).get("dropout")
    return isinstance(rate, (int, float)) and rate > 0


@contextlib.contextmanager
def _once_counted(norms: list[_BatchNorm]) -> Iterator[None]:
    """A batch enters the running statistics in the first pass, and not again in the second."""
    kept = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm, _, counted in kept:
        norm.momentum = 0.0
        norm.num_batches_tracked = None if counted is None else counted.clone()
    try:
        yield
    finally:
        for norm, momentum, counted in kept:
            norm.momentum, norm.num_batches_tracked = momentum, counted
