"""Floating-point operations of the common layers, and what PyTorch counts for a whole model.

Convention: a multiply-add is two operations; element-wise work and biases are not counted, as in
``torch.utils.flop_counter`` and in appendix B of PaLM (Chowdhery et al., 2022, arXiv:2204.02311).
The backward pass of a product ``y = x W`` is two more products of the same size: one for the
gradient of ``W``, one for that of ``x``, which the first layer does not need.
"""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode


def linear_flops(inputs: int, outputs: int, *, input_gradient: bool = True) -> int:
    """Forward and backward of a linear layer for one row."""
    return (6 if input_gradient else 4) * inputs * outputs


def attention_flops(tokens: int, width: int) -> int:
    """Forward and backward of scaled dot-product attention over one sequence, all heads together.

    ``softmax(Q K^T) V`` is two products of ``2 * tokens**2 * width`` operations, and its backward
    is four. A causal mask halves what is needed, but is counted whole, as PaLM's appendix B and
    torch's counter do: figures stay comparable with published ones.
    """
    return 3 * 2 * 2 * tokens * tokens * width


def count_flops(model: nn.Module, x: Tensor, target: Tensor) -> int:
    """What ``torch.utils.flop_counter`` sees in one forward and backward of this batch.

    Attention runs unfused meanwhile: the fused kernels recompute ``Q K^T`` in their backward and
    the counter includes that, which no declared count does. A recurrent layer that runs as one
    fused kernel is counted as 0.
    """
    counter = FlopCounterMode(display=False)
    with counter, sdpa_kernel(SDPBackend.MATH):
        loss = cast(Any, model).loss(model(x), target)
        loss.backward()
    model.zero_grad(set_to_none=True)
    return int(counter.get_total_flops())
