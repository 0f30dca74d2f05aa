"""In which number format a cell computes. Torch-free until it is applied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from scalewise.config import CellConfig

FP8_CAPABILITY = (8, 9)
"""Compute capability of the first GPUs whose tensor cores multiply fp8 (Ada; then Hopper)."""
FP8_STRATEGIES = ("single", "ddp", "fsdp")
"""Those whose ranks call whole layers. torchao composes with tensor parallelism by parallel styles
of its own, which ours are not, and says nothing of pipelines and weighted replicas."""


@dataclass(frozen=True)
class PrecisionConfig:
    """The config group ``precision``."""

    name: str
    lightning: Literal["32-true", "bf16-mixed", "16-mixed"]
    """Lightning's name for it."""
    matmul_tf32: bool
    """Let fp32 matrix products run on tensor cores with a 10-bit mantissa."""
    fp8: bool = False
    """Let linear layers multiply in fp8, scaled a tensor, where their shape allows (torchao)."""

    def __post_init__(self) -> None:
        if self.fp8 and self.lightning != "bf16-mixed":
            raise ValueError(
                f"lightning: found {self.lightning} with fp8=true; allowed: bf16-mixed, in which "
                "everything but the linear layers runs"
            )

    def check(self, cell: CellConfig) -> None:
        """Refuse what contradicts the rest of the cell. Raises ValueError, one line."""
        if not self.fp8:
            return
        if cell.strategy.kind not in (*FP8_STRATEGIES, "auto"):
            raise ValueError(
                f"precision: found {self.name} with strategy={cell.strategy.name}; allowed: "
                f"strategy={', '.join(FP8_STRATEGIES)}, or precision=bf16-mixed"
            )
        if cell.execution.kind == "cudagraph":
            raise ValueError(
                f"precision: found {self.name} with execution={cell.execution.name}; allowed: "
                "execution=eager or compile, or precision=bf16-mixed: torchao makes no promise "
                "for captured steps"
            )


def apply_precision(config: PrecisionConfig) -> None:
    """Set the process-wide switches that Lightning leaves alone."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = config.matmul_tf32
    torch.backends.cudnn.allow_tf32 = config.matmul_tf32
