"""Fusion as one Triton kernel a stream, which writes straight into its part of the result."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

_FEATURES = 256
"""Features a program takes at once."""


@triton.jit
def _interpolate(
    stream,
    times,
    targets,
    fused,
    samples,
    features,
    target_count,
    row_width,
    offset,
    SEARCH_STEPS: tl.constexpr,  # noqa: N803
    FEATURES: tl.constexpr,  # noqa: N803
):
    """One target of one batch row: search its neighbours, mix their features."""
    place = tl.program_id(0).to(tl.int64)
    row = place // target_count
    at = tl.load(targets + place)
    own_times = times + row * samples
    # The first sample that is not before the target; `samples` if all are.
    low = tl.zeros((), dtype=tl.int64)
    high = low + samples
    for _ in range(SEARCH_STEPS):
        middle = (low + high) // 2
        searching = low < high
        before = tl.load(own_times + middle, mask=searching, other=0.0) < at
        low = tl.where(searching & before, middle + 1, low)
        high = tl.where(searching & (before == 0), middle, high)
    right = tl.minimum(low, samples - 1)
    left = tl.maximum(right - 1, 0)
    begin = tl.load(own_times + left)
    span = tl.load(own_times + right) - begin
    weight = tl.where(span > 0, (at - begin) / tl.where(span > 0, span, 1.0), 0.0)
    weight = tl.minimum(tl.maximum(weight, 0.0), 1.0).to(tl.float32)
    feature = tl.program_id(1) * FEATURES + tl.arange(0, FEATURES)
    inside = feature < features
    own = stream + row * samples * features
    first = tl.load(own + left * features + feature, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(own + right * features + feature, mask=inside, other=0.0).to(tl.float32)
    mixed = first + weight * (second - first)
    result = fused + place * row_width + offset + feature
    tl.store(result, mixed.to(fused.dtype.element_ty), mask=inside)


def fuse_triton(streams: Sequence[Tensor], times: Sequence[Tensor], targets: Tensor) -> Tensor:
    """What :func:`scalewise.operations.fusion.fuse` gives, in one launch a stream."""
    batch, target_count = targets.shape
    width = sum(stream.shape[2] for stream in streams)
    fused = torch.empty((batch, target_count, width), dtype=streams[0].dtype, device=targets.device)
    offset = 0
    targets = targets.contiguous()
    for stream, own_times in zip(streams, times, strict=True):
        samples, features = stream.shape[1:]
        _interpolate[(batch * target_count, triton.cdiv(features, _FEATURES))](
            stream.contiguous(),
            own_times.contiguous(),
            targets,
            fused,
            samples,
            features,
            target_count,
            width,
            offset,
            SEARCH_STEPS=samples.bit_length(),
            FEATURES=min(_FEATURES, triton.next_power_of_2(features)),
            num_warps=2,
        )
        offset += features
    return fused
