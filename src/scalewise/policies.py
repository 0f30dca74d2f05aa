"""How cells are run and watched, apart from what comes out of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scalewise.wrap import wrap_command


@dataclass(frozen=True)
class MonitorConfig:
    """The key ``monitor``: what is sampled beside training."""

    devices: bool = True
    """Sample GPUs or, on a host without any, the ranks' processes."""
    interval_s: float = 1.0
    """Seconds between two samples."""

    def __post_init__(self) -> None:
        if not 0.1 <= self.interval_s <= 60:
            raise ValueError(f"interval_s: found {self.interval_s}; allowed: 0.1 to 60 seconds")


_LONGEST_COLLECTIVE_S = 30 * 24 * 3600
"""A month; torch turns the time into one that much larger numbers do not fit."""
MAX_CELLS = 100_000
"""The most cells of a sweep, unless ``sweep.max_cells`` says otherwise."""


def too_many_cells(found: str, max_cells: int, of: str = "") -> str:
    """The line that refuses a sweep of ``found`` cells; ``of`` says what makes them so many."""
    made = f" ({of})" if of else ""
    return (
        f"sweep.max_cells: found {found} cells{made}; allowed: at most {max_cells:,}; narrow the "
        "sweep, or raise sweep.max_cells"
    )


@dataclass(frozen=True)
class SweepConfig:
    """The key ``sweep``: how cells are run. It never changes what a cell's result is."""

    resume: str | None = None
    """Folder of a sweep to finish."""
    order_seed: int = 0
    """Seed of the shuffle of cells and repeats."""
    objective: str = "val_loss"
    """The metric a cell returns to Hydra's sweeper, or ``global_samples_per_s``."""
    timeout_s: float | None = None
    """Wall time after which a cell is ended; None for no limit."""
    hang_timeout_s: float = 600.0
    """Time without a step after which a cell counts as hung."""
    start_timeout_s: float = 600.0
    """Time until the first sign of every rank: imports, building the model, loading the data."""
    collective_timeout_s: float = 300.0
    """How long a rank waits in a collective for the others, the meeting at the start included: the
    process group's time-out, for NCCL and gloo. Shorter than ``hang_timeout_s``, so that whoever
    did not come is named by those who did."""
    retries: int = 1
    """Further tries at a cell whose fault another try can mend. One: what comes back at once is
    no accident, and a night must not go into it."""
    max_cells: int = MAX_CELLS
    """The most cells that may be planned, repeats included: a slip of the finger is refused before
    it is multiplied out."""
    max_gpu_hours: float | None = None
    """Device-hours of the whole sweep, earlier runs of it included; None for no limit."""
    foreign_processes: Literal["wait", "skip", "fail"] = "wait"
    """What becomes of a cell while other people's processes hold the GPUs it needs."""
    foreign_wait_s: float = 3600.0
    """With ``wait``: how long, before the cell is skipped."""
    expected_devices: int | None = None
    """Devices the configuration was made for: another number is used all the same, and said."""
    quarantine: bool = True
    """Lease no more to this sweep's cells what errs, throttles, or falls behind its twins."""
    doctor: bool = False
    """Examine the devices in a cell of its own before the others; the report compares with it."""
    wrap: str | None = None
    """Command that runs each rank's, as typed in ``hydra.launcher.wrap``: a profiler. ``{rank}``,
    ``{local_rank}`` and ``{folder}`` (the cell's) are filled in."""
    grace_s: float = 5.0
    """Time between SIGTERM and SIGKILL."""
    dry_run: bool = False
    """Print what would run, and run nothing."""
    rerun: str | None = None
    """With ``resume``: run only ``failed`` cells, ``all`` again, or those whose name matches."""
    extend: int = 0
    """With ``resume``: repeats to add to those that the folder has of each configuration."""
    allow_mixed: bool = False
    """With ``resume``: add results of other code or other devices than those already there."""

    def __post_init__(self) -> None:
        if self.timeout_s is not None and self.timeout_s <= 0:
            raise ValueError(f"timeout_s: found {self.timeout_s}; allowed: above 0, or null")
        if self.hang_timeout_s <= 0:
            raise ValueError(f"hang_timeout_s: found {self.hang_timeout_s}; allowed: above 0")
        if self.start_timeout_s <= 0:
            raise ValueError(f"start_timeout_s: found {self.start_timeout_s}; allowed: above 0")
        if not 1 <= self.collective_timeout_s <= _LONGEST_COLLECTIVE_S:
            raise ValueError(
                f"collective_timeout_s: found {self.collective_timeout_s:g}; allowed: 1 to "
                f"{_LONGEST_COLLECTIVE_S} seconds"
            )
        if self.max_cells < 1:
            raise ValueError(f"max_cells: found {self.max_cells}; allowed: 1 or more")
        if self.expected_devices is not None and self.expected_devices < 1:
            raise ValueError(
                f"expected_devices: found {self.expected_devices}; allowed: 1 or more, or null"
            )
        if not 0 <= self.retries <= 10:
            raise ValueError(f"retries: found {self.retries}; allowed: 0 to 10")
        if self.max_gpu_hours is not None and self.max_gpu_hours <= 0:
            raise ValueError(
                f"max_gpu_hours: found {self.max_gpu_hours}; allowed: above 0, or null"
            )
        if self.foreign_wait_s < 0:
            raise ValueError(f"foreign_wait_s: found {self.foreign_wait_s}; allowed: 0 or more")
        if not 0 <= self.grace_s <= 8:
            raise ValueError(f"grace_s: found {self.grace_s}; allowed: 0 to 8 seconds")
        if self.wrap is not None:
            wrap_command(self.wrap, 0, 0, "")
        if self.extend < 0:
            raise ValueError(f"extend: found {self.extend}; allowed: 0 or more")
