"""A sweep with cells of two hosts: what is typed, and when it trains."""

from __future__ import annotations

from pathlib import Path

from fakes.train_command import wait_for
from fakes.two_hosts import ADDRESSES, NAMES
from scalewise.records import CellFolder, SweepFolder, read_heartbeat

ON_BOTH = (
    "-m",
    "hydra/launcher=ssh",
    f"hydra.launcher.hosts=[{','.join(f'{n}:{a}' for n, a in zip(NAMES, ADDRESSES, strict=True))}]",
    "hydra.launcher.devices_per_node=1",
    "hardware=cpu",
    "hardware.cores_per_device=1",
)


def first_steps(sweep: Path, ranks: int = 2) -> CellFolder:
    """The cell that runs, once all of its ranks make steps."""

    def running() -> CellFolder | None:
        for _, folder in SweepFolder(sweep).cells():
            beats = [read_heartbeat(folder.heartbeat_path(rank)) for rank in range(ranks)]
            if all(beat is not None and beat.step > 2 for beat in beats):
                return folder
        return None

    wait_for((sweep / "sweep.json").exists, "the plan", 60)
    found = wait_for(running, "steps on every host", 90)
    assert isinstance(found, CellFolder)
    return found
