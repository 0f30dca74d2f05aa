"""Fusion and voxelization in Triton kernels.

Fusion is one kernel a stream, which writes straight into its part of the result. Voxelization is
two: a pass over the points adds each to its voxel at once, and a pass over the grid touches only
voxels that hold something.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from scalewise.operations.contract import Grid, Mode, Sums

_FEATURES = 256
"""Features that a program of the fusion takes at once."""
_POINTS = 128
"""Points that a program takes."""
_VOXELS = 1024
"""Voxels that a program takes."""
_NONE = -(2**31)
"""A maximum of nothing."""


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
    """What :func:`scalewise.operations.sensors.fuse` gives, in one launch a stream."""
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


@triton.jit
def _ordered(value):
    """int32 in the order of the fp32 ``value``: a negative float's bits grow as it falls.

    It undoes itself. No float gives the smallest int32 but a NaN, so that one is free for "none".
    """
    bits = value.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _gather(
    points,
    features,
    counts,
    values,
    dropped,
    clouds,
    points_per_cloud,
    feature_count,
    x_minimum,
    y_minimum,
    z_minimum,
    voxel_size,
    x_voxels,
    y_voxels,
    z_voxels,
    MODE: tl.constexpr,  # noqa: N803
    POINTS: tl.constexpr,  # noqa: N803
    FEATURES: tl.constexpr,  # noqa: N803
):
    point = tl.program_id(0).to(tl.int64) * POINTS + tl.arange(0, POINTS)
    exists = point < clouds * points_per_cloud
    x = tl.load(points + 3 * point, mask=exists, other=0.0)
    y = tl.load(points + 3 * point + 1, mask=exists, other=0.0)
    z = tl.load(points + 3 * point + 2, mask=exists, other=0.0)
    # Rounded as PyTorch divides: a point on a border must not change its voxel.
    x = tl.floor(tl.div_rn(x - x_minimum, voxel_size))
    y = tl.floor(tl.div_rn(y - y_minimum, voxel_size))
    z = tl.floor(tl.div_rn(z - z_minimum, voxel_size))
    inside = (x >= 0) & (x < x_voxels) & (y >= 0) & (y < y_voxels) & (z >= 0) & (z < z_voxels)
    tl.atomic_add(dropped, tl.sum((exists & (inside == 0)).to(tl.int64)))
    inside = inside & exists
    x = tl.where(inside, x, 0.0).to(tl.int64)
    y = tl.where(inside, y, 0.0).to(tl.int64)
    z = tl.where(inside, z, 0.0).to(tl.int64)
    voxel = ((point // points_per_cloud * x_voxels + x) * y_voxels + y) * z_voxels + z
    if MODE == "occupancy":
        tl.store(counts + voxel, tl.full((POINTS,), 1, tl.int32), mask=inside)
    if MODE == "count" or MODE == "mean":
        tl.atomic_add(counts + voxel, tl.full((POINTS,), 1, tl.int32), mask=inside, sem="relaxed")
    if MODE == "mean" or MODE == "max":
        feature = tl.arange(0, FEATURES)
        wanted = inside[:, None] & (feature < feature_count)[None, :]
        source = point[:, None] * feature_count + feature[None, :]
        target = voxel[:, None] * feature_count + feature[None, :]
        value = tl.load(features + source, mask=wanted, other=0.0).to(tl.float32)
        if MODE == "mean":
            tl.atomic_add(values + target, value, mask=wanted, sem="relaxed")
        else:
            tl.atomic_max(values + target, _ordered(value), mask=wanted, sem="relaxed")


@triton.jit
def _divide(
    counts,
    values,
    voxels,
    feature_count,
    VOXELS: tl.constexpr,  # noqa: N803
    FEATURES: tl.constexpr,  # noqa: N803
):
    """Sums to means, in place. A voxel of one point is its own mean and stays untouched."""
    voxel = tl.program_id(0).to(tl.int64) * VOXELS + tl.arange(0, VOXELS)
    count = tl.load(counts + voxel, mask=voxel < voxels, other=0)
    feature = tl.arange(0, FEATURES)
    wanted = (count > 1)[:, None] & (feature < feature_count)[None, :]
    place = values + voxel[:, None] * feature_count + feature[None, :]
    total = tl.load(place, mask=wanted, other=0.0)
    tl.store(place, total / tl.maximum(count, 1).to(tl.float32)[:, None], mask=wanted)


@triton.jit
def _decode(values, size, NONE: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803
    """Ordered int32 back to floats, in place; 0 where there is none."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    order = tl.load(values + place, mask=place < size, other=0)
    bits = tl.where(order == NONE, 0, tl.where(order < 0, order ^ 0x7FFFFFFF, order))
    tl.store(values + place, bits, mask=place < size)


def gather_triton(points: Tensor, features: Tensor, grid: Grid, mode: Mode) -> Sums:
    """What :func:`scalewise.operations.sensors.gather` does, in one pass.

    In ``max`` the features are int32 in the order of the floats: ranks can compare those too.
    """
    clouds, points_per_cloud = points.shape[:2]
    feature_count = features.shape[2]
    size = clouds * grid.voxels
    counts = values = None
    if mode != "max":
        counts = torch.zeros(size, dtype=torch.int32, device=points.device)
    if mode == "mean":
        values = torch.zeros((size, feature_count), device=points.device)
    elif mode == "max":
        values = torch.full((size, feature_count), _NONE, dtype=torch.int32, device=points.device)
    dropped = torch.zeros((), dtype=torch.int64, device=points.device)
    _gather[(triton.cdiv(clouds * points_per_cloud, _POINTS),)](
        points.contiguous(),
        features.contiguous(),
        counts,
        values,
        dropped,
        clouds,
        points_per_cloud,
        feature_count,
        *grid.minimum,
        grid.voxel_size,
        *grid.shape,
        MODE=mode,
        POINTS=_POINTS,
        FEATURES=triton.next_power_of_2(feature_count),
    )
    return Sums(counts, values, dropped)


def finish_triton(sums: Sums, clouds: int, grid: Grid, mode: Mode) -> Tensor:
    """What :func:`scalewise.operations.sensors.finish` gives, in place."""
    if mode in ("count", "occupancy"):
        assert sums.counts is not None
        return sums.counts.view(clouds, *grid.shape)
    values = sums.features
    assert values is not None
    voxels, feature_count = values.shape
    if mode == "mean":
        _divide[(triton.cdiv(voxels, _VOXELS),)](
            sums.counts,
            values,
            voxels,
            feature_count,
            VOXELS=_VOXELS,
            FEATURES=triton.next_power_of_2(feature_count),
        )
    else:
        blocks = triton.cdiv(values.numel(), _VOXELS)
        _decode[(blocks,)](values, values.numel(), NONE=_NONE, BLOCK=_VOXELS)
        values = values.view(torch.float32)
    return values.view(clouds, *grid.shape, feature_count)
