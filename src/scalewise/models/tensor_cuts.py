"""Where the matrices of a model may be cut, for devices that each hold a part of every one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TensorCuts:
    """Names of modules below the model, as ``named_modules`` gives them.

    A pair of linear layers of which the first is cut by outputs and the second by inputs needs one
    sum over the devices behind the second, and nothing between them (Shoeybi et al., 2019, section
    3: Megatron-LM). A module in between works on the part of the features it is handed.
    """

    heads: int
    """Attention heads: what the devices share out, so their number has to divide it."""
    fused_qkv: tuple[str, ...]
    """Linear layers whose outputs are queries, keys and values of all heads, one behind another."""
    outputs: tuple[str, ...]
    """Linear layers whose outputs are shared out."""
    inputs: tuple[str, ...]
    """Linear layers whose inputs are shared out."""
    vocabulary: str | None = None
    """The embedding whose rows are shared out, where the output layer is the same matrix."""
    before_vocabulary: str | None = None
    """The module whose output is multiplied with that matrix."""
