"""Changes inside a module before training: checkpointed blocks, compiling, fp8."""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytorch_lightning as pl
import torch
from torch import cuda, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from scalewise.config import FP8_CAPABILITY, CompileMode, ConfigError, PrecisionConfig
from scalewise.train.rank import RankContext
from scalewise.train.torch_internals import compiled_graphs

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


class Compiled:
    """A module through ``torch.compile``, and how long compiling took.

    Compiling happens in the first steps, when the shapes are known: :attr:`seconds` is the time
    of the calls that compiled, forward only; what backward takes is in the first step's row.
    """

    def __init__(self, mode: CompileMode) -> None:
        self.mode = mode
        self.seconds = 0.0

    def apply(self, module: pl.LightningModule) -> None:
        """Compile ``module``'s objective, or the whole ``training_step`` of a user's own."""
        name = "objective" if hasattr(module, "objective") else "training_step"
        compiled = torch.compile(getattr(module, name), mode=self.mode, dynamic=False)
        object.__setattr__(module, name, self._timed(compiled))

    def _timed(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        def run(*inputs: Any, **named: Any) -> Any:
            graphs, began = compiled_graphs(), time.perf_counter()
            output = compiled(*inputs, **named)
            if compiled_graphs() != graphs:
                self.seconds += time.perf_counter() - began
            return output

        return run


def apply_precision(config: PrecisionConfig) -> None:
    """Set the process-wide switches that Lightning leaves alone."""
    torch.backends.cuda.matmul.allow_tf32 = config.matmul_tf32
    torch.backends.cudnn.allow_tf32 = config.matmul_tf32


_MULTIPLE = 16
"""Both widths of a matrix must be multiples of it for ``torch._scaled_mm``."""


def multiply_in_fp8(module: nn.Module, rank: RankContext) -> None:
    """Let ``module``'s linear layers multiply in fp8 on this rank's GPU, by torchao.

    Input, weight and output gradient of each are scaled by one factor a tensor, taken from its
    largest absolute value at that moment, and cast to fp8 (e4m3; gradients e5m2): torchao's recipe
    ``tensorwise``. Parameters, gradients, optimizer and checkpoints stay as they are.

    Raises ConfigError where the GPU, the installation or the model cannot.
    """
    if rank.device.kind != "cuda" or cuda.get_device_capability(rank.local_rank) < FP8_CAPABILITY:
        # The sweep looks before it starts a rank, but where NVML keeps the capability to itself.
        raise ConfigError(
            f"precision: found fp8 on {rank.device.name}; allowed: a GPU of compute capability "
            f"{FP8_CAPABILITY[0]}.{FP8_CAPABILITY[1]} or higher, or precision=bf16-mixed"
        )
    convert_linear_layers(module)


def convert_linear_layers(module: nn.Module, emulate: bool = False) -> None:
    """Swap what :func:`is_convertible` for torchao's layer, in place.

    Args:
        module: any module that is not itself a linear layer.
        emulate: round to fp8 and multiply in the wider format, as devices without fp8 can.

    Raises ConfigError where torchao is missing or nothing can be swapped.
    """
    # It tells of every extension that was built for devices other than this one.
    logging.getLogger("torchao").setLevel(logging.ERROR)
    try:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    except ImportError as error:
        raise ConfigError(
            f"precision: found fp8, which needs torchao ({error}); run pip install "
            "'scalewise[fp8]', or use precision=bf16-mixed"
        ) from error
    linear = [part for part in module.modules() if isinstance(part, nn.Linear)]
    if not any(is_convertible(part) for part in linear):
        raise ConfigError(
            f"precision: found fp8, but none of the model's {len(linear)} linear layers has two "
            f"widths that are multiples of {_MULTIPLE}; allowed: bf16-mixed"
        )
    # The rows of a batch are multiplied over for the weight's gradient: any number must do.
    tensorwise = Float8LinearConfig.from_recipe_name("tensorwise")
    config = replace(tensorwise, pad_inner_dim=True, emulate=emulate)
    convert_to_float8_training(
        module, config=config, module_filter_fn=lambda part, name: is_convertible(part)
    )


def is_convertible(part: nn.Module) -> bool:
    """A plain linear layer whose widths fit.

    A subclass has a forward of its own, or none: torch's attention only borrows the weights of its
    output layer.
    """
    return (
        type(part) is nn.Linear
        and part.in_features % _MULTIPLE == 0
        and part.out_features % _MULTIPLE == 0
    )
