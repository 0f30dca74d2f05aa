"""A host with GPUs of several kinds: each cell has the kind it names, and waits for no other."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fakes.nvml.fixture import fake_nvml  # noqa: F401 - a fixture
from fakes.nvml.scenario import Scenario, gpu_uuid
from fakes.requests import asked as request_of
from scalewise.gpu import Hosts, Lease, Occupancy
from scalewise.records import CellFolder, Ending
from scalewise.supervisor import to_line
from scalewise.sweep import QueuedCell, SupervisorProcess, local_engine
from scalewise.sweep.plan import Request, plan
from scalewise.sweep.preflight import explain_differences
from scalewise.sweep.status_view import Display

H100, A10G = "NVIDIA H100 80GB HBM3", "NVIDIA A10G"


def mixed() -> Scenario:
    """GPUs 0 and 1 are H100, 2 and 3 A10G."""
    scenario = Scenario()
    for index, name in enumerate((H100, H100, A10G, A10G)):
        scenario.device(str(index), gpu_uuid(index), 81920, name)
    return scenario


def asked(*overrides: str) -> Request:
    return request_of("tracking=none", *overrides)


@dataclass
class TogetherOnly:
    """Stands in for supervisors: a cell is done once ``count`` of them have begun."""

    folder: Path
    count: int
    had: dict[str, tuple[str | None, ...]] = field(default_factory=dict)
    """Which GPUs each hardware profile was given."""

    def start(self, queued: QueuedCell, folder: CellFolder, lease: Lease) -> SupervisorProcess:
        self.had[queued.cell.request.cell.hardware.name] = tuple(s.uuid for s in lease.slots)
        (self.folder / f"{len(self.had)}").touch()
        waits = 'for i in $(seq 200); do [ -e "$1" ] && printf "%s" "$2" && exit; sleep 0.1; done'
        done = to_line(Ending("done"))
        process = subprocess.Popen(
            ["sh", "-c", waits, "_", str(self.folder / f"{self.count}"), done],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        job: Any = Ending("waiting")
        return SupervisorProcess(job, process, folder.path / "supervisor.err")


def test_each_kind_of_gpu_has_its_own_task_at_the_same_time(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fake_nvml: Callable[[Scenario], Path],  # noqa: F811
) -> None:
    fake_nvml(mixed())
    cells = plan(
        [asked("hardware=h100", "strategy=ddp"), asked("hardware=a10g", "strategy=ddp")], 0
    )
    with (tmp_path / "said").open("w") as file:
        display = Display(Console(file=file, width=200))
        engine = local_engine(tmp_path / "sweep", "packed", display, Occupancy(read=dict))
        supervisors = TogetherOnly(tmp_path, count=2)
        monkeypatch.setattr(engine.executor, "start_supervisor", supervisors.start)
        report = engine.run(cells)
    assert [ending.outcome for ending in report.endings.values()] == ["done", "done"]
    assert supervisors.had == {
        "h100": (gpu_uuid(0), gpu_uuid(1)),
        "a10g": (gpu_uuid(2), gpu_uuid(3)),
    }
    said = (tmp_path / "said").read_text()
    assert f"hardware=a10g leaves out GPU 0 ({H100}), GPU 1 ({H100})" in said


@pytest.mark.parametrize(
    ("strategy", "devices", "told"),
    [("ddp", 4, 1), ("ddp", 2, 0), ("heterogeneous", 4, 0), ("single", 1, 0)],
)
def test_equal_shares_on_unlike_gpus_are_told_of(
    fake_nvml: Callable[[Scenario], Path],  # noqa: F811
    strategy: str,
    devices: int,
    told: int,
) -> None:
    fake_nvml(mixed())
    cell = asked(f"strategy={strategy}").cell
    lines = [*explain_differences(cell, devices, Hosts().of(cell.hardware))]
    assert len(lines) == told
    assert all(A10G in line and H100 in line for line in lines)
