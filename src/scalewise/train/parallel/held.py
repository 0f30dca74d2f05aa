"""What of a model this rank holds."""

from __future__ import annotations

from typing import Any

from torch import nn


def held_parameters(network: nn.Module) -> list[Any]:
    """What the optimizer gets: the named parameters of which this rank holds something.

    An update of many parameters at once takes DTensors or plain tensors, not both: where a model
    has both they come as two groups.
    """
    held = [(name, p) for name, p in network.named_parameters() if not p.is_meta]
    divided = [item for item in held if is_dtensor(item[1])]
    if not divided or len(divided) == len(held):
        return held
    whole = [item for item in held if not is_dtensor(item[1])]
    return [{"params": divided}, {"params": whole}]


def is_dtensor(parameter: object) -> bool:
    """Whether it is one of torch's DTensors; asked so that they need not be imported."""
    return hasattr(parameter, "placements") and hasattr(parameter, "to_local")
