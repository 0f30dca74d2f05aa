"""Linear layers that multiply in fp8, by torchao's float8 training.

Input, weight and output gradient of each are scaled by one factor a tensor, taken from its largest
absolute value at that moment, and cast to fp8 (e4m3; gradients e5m2): torchao's recipe
``tensorwise``. Parameters, and with them gradients, optimizer and checkpoints, stay as they are.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import cuda, nn

from scalewise.errors import ConfigError
from scalewise.records.fp8 import Fp8Record
from scalewise.train.precision import FP8_CAPABILITY

if TYPE_CHECKING:
    from scalewise.train.rank import RankContext

_MULTIPLE = 16
"""What both widths of a matrix must be multiples of for ``torch._scaled_mm``."""


def multiply_in_fp8(module: nn.Module, rank: RankContext) -> None:
    """Convert ``module``'s linear layers for this rank's GPU.

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


def fp8_record(module: nn.Module) -> Fp8Record | None:
    """Which of ``module``'s linear layers are torchao's, and which are not; None if none is."""
    torchao = sys.modules.get("torchao.float8.float8_linear")
    if torchao is None:
        return None
    linear = {name: part for name, part in module.named_modules() if isinstance(part, nn.Linear)}
    swapped = {name for name, part in linear.items() if isinstance(part, torchao.Float8Linear)}
    if not swapped:
        return None
    return Fp8Record(
        tuple(name for name in linear if name in swapped),
        tuple(name for name in linear if name not in swapped),
    )
