"""Changes inside a module before training: checkpointed blocks, compiling."""

from __future__ import annotations

import functools
from typing import Any

import pytorch_lightning as pl
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from scalewise.config import CompileMode, PrecisionConfig

BLOCK_LISTS = ("blocks", "layers")
"""Names under which a network keeps what it repeats."""


def checkpoint_blocks(network: nn.Module) -> int:
    """Let each block of ``network`` keep its inputs only; returns how many blocks there are.

    That takes less memory, for a second forward pass of each block (activation checkpointing).
    Parameters keep their names. Random masks are drawn alike in both passes where there are any.
    Raises ValueError for a network without blocks.
    """
    blocks = repeated_blocks(network)
    if not blocks:
        raise ValueError(
            f"execution.activation_checkpointing: found true, but {type(network).__name__} has no "
            f"list of blocks named {' or '.join(BLOCK_LISTS)}; allowed: a transformer of "
            "scalewise, or a model with such a list"
        )
    if any(isinstance(part, _BatchNorm) for block in blocks for part in block.modules()):
        raise ValueError(
            "execution.activation_checkpointing: found true with batch norm in a block, which "
            "would take each batch into its statistics twice; allowed: false"
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

    @functools.wraps(forward)
    def recomputed(*inputs: Any) -> Any:
        if not block.training:
            return forward(*inputs)
        return checkpoint(forward, *inputs, use_reentrant=False, preserve_rng_state=random)

    return recomputed


def _is_random(part: nn.Module) -> bool:
    rate = getattr(part, "p", None) if isinstance(part, nn.Dropout) else vars(part).get("dropout")
    return isinstance(rate, (int, float)) and rate > 0


def compile_step(module: pl.LightningModule, mode: CompileMode) -> None:
    """Compile ``module``'s objective, or the whole ``training_step`` of a user's own."""
    name = "objective" if hasattr(module, "objective") else "training_step"
    compiled = torch.compile(getattr(module, name), mode=mode, dynamic=False)
    object.__setattr__(module, name, compiled)


def apply_precision(config: PrecisionConfig) -> None:
    """Set the process-wide switches that Lightning leaves alone."""
    torch.backends.cuda.matmul.allow_tf32 = config.matmul_tf32
    torch.backends.cudnn.allow_tf32 = config.matmul_tf32
