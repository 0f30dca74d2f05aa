"""What a supervisor is told of a cell in tests that build no configuration."""

from pathlib import Path

from scalewise.records import DeviceInfo, PlannedCell
from scalewise.supervisor import Job, Origin, Settings

SLOT = DeviceInfo("cpu", "a processor")

SETTINGS = Settings(
    strategy="single", scaling="strong", one_model=True, batch_sizes=(32, 32),
    environment={}, timeout_s=None, hang_timeout_s=60.0, start_timeout_s=60.0,
    collective_timeout_s=30.0, grace_s=1.0, wrap=None, sample_every_s=None, seed_format=False,
    memory_advice="",
)  # fmt: skip


def job_in(folder: Path, settings: Settings = SETTINGS, devices: int = 1) -> Job:
    """The job of a cell with this folder."""
    planned = PlannedCell("id", "config", "cell", (), 0, devices)
    slots = (SLOT,) * devices
    return Job(str(folder), planned, settings, slots, Origin(str(folder.parent), (), ()))
