"""A forward pass through the stages of a pipeline, one after another, for batches of any size."""

from __future__ import annotations

import torch
from torch import Tensor, distributed, nn

from scalewise.train.parallel.replicas import Replicas

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_LONGEST_SHAPE = 6


class Relay:
    """Passes activations on with their shape in front, for which a schedule has no room."""

    def __init__(self, replicas: Replicas, device: torch.device) -> None:
        self._replicas = replicas
        self._device = device

    def forward(self, stage: nn.Module, x: Tensor) -> Tensor | None:
        """The output of the whole model on the last stage; None on every other rank."""
        replicas = self._replicas
        hidden = x if replicas.place == 0 else self._receive(replicas.ranks[replicas.place - 1])
        output: Tensor = stage(hidden, x)
        if replicas.place == len(replicas.ranks) - 1:
            return output
        self._send(output, replicas.ranks[replicas.place + 1])
        return None

    def _send(self, output: Tensor, to: int) -> None:
        header = torch.zeros(_LONGEST_SHAPE + 2, dtype=torch.int64)
        header[0], header[1] = _DTYPES.index(output.dtype), output.ndim
        header[2 : 2 + output.ndim] = torch.tensor(output.shape)
        distributed.send(header.to(self._device), to, group=self._replicas.inside)
        distributed.send(output.contiguous(), to, group=self._replicas.inside)

    def _receive(self, source: int) -> Tensor:
        header = torch.zeros(_LONGEST_SHAPE + 2, dtype=torch.int64, device=self._device)
        distributed.recv(header, source, group=self._replicas.inside)
        dtype, ndim, *shape = header.tolist()
        hidden = torch.empty(shape[:ndim], dtype=_DTYPES[dtype], device=self._device)
        distributed.recv(hidden, source, group=self._replicas.inside)
        return hidden
