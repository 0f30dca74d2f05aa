"""Multimodal fusion: streams sampled at their own times, brought to common times and joined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from scalewise.operations.contract import Implementation, join_ranks, uses_triton

FusionBatch = tuple[Sequence[Tensor], Sequence[Tensor], Tensor]
"""``(streams, times, targets)``: ``[B, S_i, D_i]`` each, ``[B, S_i]`` each, ``[B, T]``."""


def interpolate(stream: Tensor, times: Tensor, targets: Tensor) -> Tensor:
    """Values of a stream at other times, on the straight line between its neighbours.

    Args:
        stream: ``[B, S, D]``, floating point.
        times: ``[B, S]``, ascending along S.
        targets: ``[B, T]``. Before the first and after the last time the end value is held.

    Returns ``[B, T, D]`` in the stream's type, computed in 32 bits.
    """
    right = torch.searchsorted(times, targets).clamp(max=times.shape[1] - 1)
    left = (right - 1).clamp(min=0)
    begin, end = times.gather(1, left), times.gather(1, right)
    span = end - begin
    # Neighbours at the same time leave nothing to interpolate: the first of them holds.
    weight = torch.where(span > 0, (targets - begin) / span, 0.0).clamp(0, 1).unsqueeze(-1)
    width = (-1, -1, stream.shape[2])
    before = stream.gather(1, left.unsqueeze(-1).expand(width)).float()
    after = stream.gather(1, right.unsqueeze(-1).expand(width)).float()
    return torch.lerp(before, after, weight.float()).to(stream.dtype)


def fuse(streams: Sequence[Tensor], times: Sequence[Tensor], targets: Tensor) -> Tensor:
    """Every stream interpolated at ``targets``, joined along the features: ``[B, T, sum D_i]``."""
    return torch.cat(
        [interpolate(s, t, targets) for s, t in zip(streams, times, strict=True)], dim=-1
    )


class Fusion(nn.Module):
    """:func:`fuse` as a model of a cell.

    Args:
        implementation: see :data:`Implementation`.
        combine_ranks: average the fused features over ranks, as a multi-GPU robot would.
    """

    forward_only: ClassVar[Literal[True]] = True

    def __init__(self, implementation: Implementation = "auto", combine_ranks: bool = True) -> None:
        super().__init__()
        self.implementation = implementation
        self.combine_ranks = combine_ranks

    def forward(self, batch: FusionBatch) -> Tensor:
        """Fused features ``[B, T, sum D_i]``."""
        streams, times, targets = batch
        if uses_triton(self.implementation, targets.device):
            from scalewise.operations.fusion_kernel import fuse_triton

            fused = fuse_triton(streams, times, targets)
        else:
            fused = fuse(streams, times, targets)
        return join_ranks(fused, "mean") if self.combine_ranks else fused

    def counts(self) -> dict[str, float]:
        return {}
