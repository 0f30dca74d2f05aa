"""Which ranks hold one replica together, and what crosses the replicas: gradients, and norms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, distributed, nn
from torch.distributed.tensor import DTensor


@dataclass(frozen=True)
class Replicas:
    """Neighbouring ranks hold a replica; ranks at the same place of theirs hold the same part."""

    ranks: tuple[int, ...]
    """Global ranks of this rank's replica, in order of their place."""
    place: int
    """This rank's among them."""
    count: int
    inside: distributed.ProcessGroup
    """The ranks of this replica."""
    across: distributed.ProcessGroup
    """The ranks that hold the same part, one of each replica."""

    @classmethod
    def of_size(cls, size: int) -> Replicas:
        """Replicas of ``size`` ranks each. Every rank has to call this."""
        rank, world_size = distributed.get_rank(), distributed.get_world_size()
        blocks = [tuple(range(b, b + size)) for b in range(0, world_size, size)]
        alike = [tuple(range(place, world_size, size)) for place in range(size)]
        mine = rank // size
        return cls(
            ranks=blocks[mine],
            place=rank % size,
            count=len(blocks),
            inside=_required(_group_of(rank, blocks)),
            across=_required(_group_of(rank, alike)),
        )

    def subgroup(self, places: Sequence[int]) -> distributed.ProcessGroup | None:
        """Ranks at these places of this replica; None where this rank is at none of them.

        Every rank has to call this.
        """
        size = len(self.ranks)
        starts = range(0, size * self.count, size)
        members = [tuple(start + place for place in places) for start in starts]
        return _group_of(distributed.get_rank(), members)

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace every gradient by its mean over the replicas, all of one format at once."""
        if self.count == 1:
            return
        gradients = [local(p.grad) for p in parameters if p.grad is not None]
        for dtype in {g.dtype for g in gradients}:
            alike = [g for g in gradients if g.dtype == dtype]
            joined = torch.cat([g.reshape(-1) for g in alike])
            distributed.all_reduce(joined, group=self.across)
            joined /= self.count
            parts = torch.split(joined, [g.numel() for g in alike])
            for gradient, part in zip(alike, parts, strict=True):
                gradient.copy_(part.view_as(gradient))

    def clip(
        self,
        max_norm: float,
        own: Sequence[nn.Parameter],
        alike: Sequence[nn.Parameter] = (),
        elsewhere: Sequence[nn.Parameter] = (),
    ) -> None:
        """Scale gradients so that the norm over the whole replica is at most ``max_norm``.

        Args:
            own: parts that no other rank of the replica has.
            alike: what every rank of the replica has, with the same gradient.
            elsewhere: what this rank has and another one counts.
        """
        squares = _squares(own)
        distributed.all_reduce(squares, group=self.inside)
        squares += _squares(alike)
        # The same small number as in torch's clip_grad_norm_, so that results agree.
        factor = (max_norm / (squares.sqrt() + 1e-6)).clamp(max=1.0)
        gradients = [local(p.grad) for p in (*own, *alike, *elsewhere) if p.grad is not None]
        torch._foreach_mul_(gradients, factor)


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor; any other tensor as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _squares(parameters: Sequence[nn.Parameter]) -> Tensor:
    gradients = [local(p.grad) for p in parameters if p.grad is not None]
    if not gradients:
        return torch.zeros((), device=parameters[0].device if parameters else None)
    return torch.stack(torch._foreach_norm(gradients)).square().sum()


def _group_of(rank: int, groups: Sequence[tuple[int, ...]]) -> distributed.ProcessGroup | None:
    """The group this rank is in; every rank makes every group, in one order, as torch requires."""
    mine = None
    for members in groups:
        group = distributed.new_group(list(members))
        if rank in members:
            mine = group
    return mine


def _required(group: distributed.ProcessGroup | None) -> distributed.ProcessGroup:
    assert group is not None
    return group
