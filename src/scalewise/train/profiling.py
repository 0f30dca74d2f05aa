"""How closely a cell watches its own steps. Torch-free: the configuration is read without it."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import PositiveInt

BLOCKS, BLOCK_STEPS = 10, 6
"""After a window: blocks of steps, without and with reduction in turn, and the steps of each."""


@dataclass(frozen=True)
class ProfileConfig:
    """The key ``profile``. Cells that differ in it are never repeats of one another."""

    anatomy: bool = True
    """Mark the phases of every step; without, only whole steps are timed."""
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
        if self.nvtx and not self.anatomy:
            raise ValueError(
                "nvtx: found true with profile.anatomy=false, which marks no phases; allowed: "
                "profile.anatomy=true"
            )

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
