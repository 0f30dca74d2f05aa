"""The config group ``execution``. Torch-free: the configuration is read without it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

if TYPE_CHECKING:
    from scalewise.config import CellConfig

CompileMode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]

EAGER_STEPS_SINGLE = 3
"""Steps run eagerly before one is captured: they create the optimizer's state and the handles of
cuBLAS, and show whether a step can be captured at all."""
EAGER_STEPS_DDP = 11
"""The same under DDP, whose bookkeeping settles in that time (PyTorch's notes on CUDA graphs)."""
FIRST_REPLAYS = 2
"""Replays that still pay for bringing the graph to the device."""
COMPILE_STEPS = 3
"""Steps in which ``torch.compile`` may still be compiling: forward, backward, a second shape."""


@dataclass(frozen=True)
class ExecutionConfig:
    """How a step runs. Everything here may change its speed and memory, nothing else."""

    name: str
    kind: Literal["eager", "compile", "cudagraph"]
    """``eager``: operation by operation. ``compile``: network and loss through ``torch.compile``.
    ``cudagraph``: forward, backward, all-reduce and optimizer recorded once, then replayed."""
    steps_per_batch: Annotated[int, Field(ge=1, le=4096)] = 1
    """``cudagraph``: steps whose data the loader hands over at once; each remains a step."""
    compile_mode: CompileMode = "default"
    """``compile``: torch's own name for how much it tries."""
    compiled: bool = False
    """``cudagraph``: compile network and loss first, so that the graph holds fewer kernels."""
    activation_checkpointing: bool = False
    """Keep only the inputs of a network's blocks and compute the rest again in backward."""
    cudnn_benchmark: bool = False
    """Let cuDNN try its algorithms on the first batch of each shape."""
    device_check: bool = True
    """Prove before training that each GPU computes what the CPU computes."""

    def __post_init__(self) -> None:
        steps = self.steps_per_batch
        if steps > 1 and self.kind != "cudagraph":
            raise ValueError(
                f"steps_per_batch: found {steps} with execution={self.name}; allowed: 1, or "
                "execution=cudagraph"
            )

        if self.compiled and self.kind != "cudagraph":
            raise ValueError(
                f"compiled: found true with execution={self.name}; allowed: "
                "execution=cudagraph_compiled, or execution=compile"
            )

        if self.compiled and self.compile_mode in ("reduce-overhead", "max-autotune"):
            raise ValueError(
                f"compile_mode: found {self.compile_mode} with execution={self.name}, and it makes "
                "graphs of its own; allowed: default, max-autotune-no-cudagraphs"
            )

    @property
    def compiles(self) -> bool:
        """Whether ``torch.compile`` has a part in it."""
        return self.kind == "compile" or self.compiled

    def preparing_steps(self, devices: int) -> int:
        """First steps of every run that are never timed."""
        if self.kind == "compile":
            return COMPILE_STEPS
        return self.eager_steps(devices) + FIRST_REPLAYS if self.kind == "cudagraph" else 0

    def eager_steps(self, devices: int) -> int:
        """Steps before the capture."""
        return EAGER_STEPS_SINGLE if devices == 1 else EAGER_STEPS_DDP

    def check(self, cell: CellConfig) -> None:
        """Refuse what contradicts the rest of the cell. Raises ValueError, one line."""
        if self.cudnn_benchmark and cell.deterministic:
            raise ValueError(
                "execution.cudnn_benchmark: found true with deterministic=true; allowed: one of "
                "them, for cuDNN then takes whichever algorithm was fastest that day"
            )
        devices = 1 if cell.strategy.kind == "single" else 2
        preparing = self.preparing_steps(devices)
        if cell.max_steps is not None and cell.max_steps <= preparing:
            raise ValueError(
                f"max_steps: found {cell.max_steps} with execution={self.name}, whose first "
                f"{preparing} steps prepare it and are not timed; allowed: {preparing + 1} or more"
            )

    def check_host(
        self, device_kind: Literal["cuda", "cpu"], environment: Mapping[str, str] = os.environ
    ) -> None:
        """Refuse what devices of that kind, or this host, cannot do. Raises ValueError."""
        if self.kind == "cudagraph" and device_kind == "cpu":
            raise ValueError(
                f"execution: found {self.name} on a CPU host, and CUDA graphs need a GPU; "
                "allowed: eager or compile"
            )
        if self.compiles and find_compiler(environment) is None:
            raise ValueError(
                f"execution: found {self.name}, but this host has no C++ compiler, which "
                "torch.compile needs; install g++ or clang++ (or point CXX at one), or use "
                "execution=eager"
            )

    def rank_environment(self, devices: int) -> dict[str, str]:
        """Environment variables its ranks need, known before they start."""
        if self.kind != "cudagraph" or devices == 1:
            return {}
        # NCCL's watchdog queries events from a thread of its own, which a capture forbids, and it
        # does not see replays anyway: the supervisor's heartbeat is what finds a hang.
        return {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}


def find_compiler(environment: Mapping[str, str] = os.environ) -> str | None:
    """Path of the C++ compiler that ``torch.compile`` would call; None where there is none."""
    path = environment.get("PATH")
    for name in (environment.get("CXX"), "g++", "clang++", "c++"):
        found = shutil.which(name, path=path) if name else None
        if found:
            return found
    return None
