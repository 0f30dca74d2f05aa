"""How steps run: execution, precision and profile."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from scalewise.config.errors import require

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
        captures, beside = self.kind == "cudagraph", f"execution={self.name}"
        steps, mode = self.steps_per_batch, self.compile_mode
        allowed = "1, or execution=cudagraph"
        require("steps_per_batch", steps, steps == 1 or captures, allowed, beside)
        allowed = "execution=cudagraph_compiled, or execution=compile"
        require("compiled", self.compiled, not self.compiled or captures, allowed, beside)
        own = not self.compiled or mode not in ("reduce-overhead", "max-autotune")  # own graphs
        require("compile_mode", mode, own, "default, max-autotune-no-cudagraphs", beside)

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
        return EAGER_STEPS_SINGLE if devices == 1 else EAGER_STEPS_DDP

    def rank_environment(self, devices: int) -> dict[str, str]:
        """Environment variables its ranks need, known before they start."""
        if self.kind != "cudagraph" or devices == 1:
            return {}
        # NCCL's watchdog queries events from a thread of its own, which a capture forbids, and it
        # does not see replays anyway: the supervisor's heartbeat is what finds a hang.
        return {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}


def find_compiler() -> str | None:
    """Path of the C++ compiler that ``torch.compile`` would call; None where there is none."""
    names = (os.environ.get("CXX"), "g++", "clang++", "c++")
    return next(filter(None, (shutil.which(name) for name in names if name)), None)


@dataclass(frozen=True)
class PrecisionConfig:
    """The config group ``precision``."""

    name: str
    lightning: Literal["32-true", "bf16-mixed", "16-mixed"]
    """Lightning's name for it."""
    matmul_tf32: bool
    """Let fp32 matrix products run on tensor cores with a 10-bit mantissa."""


BLOCKS, BLOCK_STEPS = 10, 6
"""After a window: blocks of steps, without and with reduction in turn, and the steps of each."""


@dataclass(frozen=True)
class ProfileConfig:
    """The key ``profile``. Cells that differ in it are never repeats of one another."""

    anatomy: bool = True
    """Mark the phases of steps; without, only whole steps are timed."""
    nvtx: bool = False
    """Open an NVTX range for every step and every phase, for Nsight Systems; needs a GPU."""
    window: bool = False
    """Watch ``steps`` steps with torch's profiler for communication, overlapped and total. Such a
    cell ends after its window, and none of its steps is timed."""
    trace: bool = False
    """Keep the window as a Chrome trace too; implies ``window``."""
    steps: PositiveInt = 5
    """Steps of the window, which opens after ``warmup_steps``."""

    def __post_init__(self) -> None:
        marks = self.anatomy or not self.nvtx
        require("nvtx", self.nvtx, marks, "profile.anatomy=true", "profile.anatomy=false")

    @property
    def profiles(self) -> bool:
        """Whether a profiler runs, so that no time of this cell counts."""
        return self.window or self.trace

    def last_step(self, max_steps: int | None, untimed_steps: int, reduces: bool) -> int | None:
        """Optimizer steps to take, None for no limit.

        A profiled cell ends after its window and, where gradients are reduced, the blocks of
        steps with and without that.
        """
        if not self.profiles:
            return max_steps
        end = untimed_steps + self.steps + (BLOCKS * BLOCK_STEPS if reduces else 0)
        return end if max_steps is None else min(end, max_steps)


DEFAULT_PROFILE = ProfileConfig()
