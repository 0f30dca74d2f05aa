"""How cells are run and watched, apart from what comes out of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from scalewise.wrap import wrap_command


@dataclass(frozen=True)
class MonitorConfig:
    """The key ``monitor``: what is sampled beside training."""

    devices: bool = True
    """Sample GPUs or, on a host without any, the ranks' processes."""
    interval_s: Annotated[float, Field(ge=0.1, le=60)] = 1.0
    """Seconds between two samples."""


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
    timeout_s: PositiveFloat | None = None
    """Wall time after which a cell is ended; None for no limit."""
    hang_timeout_s: PositiveFloat = 600.0
    """Time without a step after which a cell counts as hung."""
    start_timeout_s: PositiveFloat = 600.0
    """Time until the first sign of every rank: imports, building the model, loading the data."""
    collective_timeout_s: Annotated[float, Field(ge=1, le=_LONGEST_COLLECTIVE_S)] = 300.0
    """How long a rank waits in a collective for the others, the meeting at the start included: the
    process group's time-out, for NCCL and gloo. Shorter than ``hang_timeout_s``, so that whoever
    did not come is named by those who did."""
    retries: Annotated[int, Field(ge=0, le=10)] = 1
    """Further tries at a cell whose fault another try can mend. One: what comes back at once is
    no accident, and a night must not go into it."""
    max_cells: PositiveInt = MAX_CELLS
    """The most cells that may be planned, repeats included: a slip of the finger is refused before
    it is multiplied out."""
    max_gpu_hours: PositiveFloat | None = None
    """Device-hours of the whole sweep, earlier runs of it included; None for no limit."""
    foreign_processes: Literal["wait", "skip", "fail"] = "wait"
    """What becomes of a cell while other people's processes hold the GPUs it needs."""
    foreign_wait_s: NonNegativeFloat = 3600.0
    """With ``wait``: how long, before the cell is skipped."""
    expected_devices: PositiveInt | None = None
    """Devices the configuration was made for: another number is used all the same, and said."""
    quarantine: bool = True
    """Lease no more to this sweep's cells what errs, throttles, or falls behind its twins."""
    doctor: bool = False
    """Examine the devices in a cell of its own before the others; the report compares with it."""
    wrap: str | None = None
    """Command that runs each rank's, as typed in ``hydra.launcher.wrap``: a profiler. ``{rank}``,
    ``{local_rank}`` and ``{folder}`` (the cell's) are filled in."""
    grace_s: Annotated[float, Field(ge=0, le=8)] = 5.0
    """Time between SIGTERM and SIGKILL."""
    dry_run: bool = False
    """Print what would run, and run nothing."""
    rerun: str | None = None
    """With ``resume``: run only ``failed`` cells, ``all`` again, or those whose name matches."""
    extend: NonNegativeInt = 0
    """With ``resume``: repeats to add to those that the folder has of each configuration."""
    allow_mixed: bool = False
    """With ``resume``: add results of other code or other devices than those already there."""

    def __post_init__(self) -> None:
        if self.wrap is not None:
            wrap_command(self.wrap, 0, 0, "")
