"""``hydra.launcher.policy=packed``: cells side by side, each on its own cores, all named."""

import subprocess
import sys
from pathlib import Path

import pytest

from fakes.proofs import overlap
from fakes.train_command import LEAN, Finished, Train, wait_for
from scalewise.analysis.disturbances import FOREIGN_CPU_UP_TO, foreign_cpu_share
from scalewise.host import CoreUse, CoreUseMeter, usable_cores
from scalewise.records import CellResult

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(len(usable_cores()) < 2, reason="needs two cores"),
]


@pytest.fixture(scope="module")
def packed(shared_train: Train, elsewhere: Path) -> tuple[Finished, CoreUse]:
    """Three cells on two cores, of which the first is busy, and how busy others kept the host.

    What busies it belongs to this test, and so does the sweep: others are whoever else is there.
    """
    spin = f"import os; os.sched_setaffinity(0, {{{usable_cores()[0]}}})\nwhile True: pass"
    started = shared_train.start(
        *LEAN, "max_steps=14", "model._target_=mine.Faulty", "dataset._target_=mine.Data",
        "batch_size=16", "+model.step_ms=100", "hardware=cpu", "hardware.cores_per_device=1",
        "hydra.launcher.policy=packed", "seed=1,2,3", "-m",
        cwd=elsewhere,
    )  # fmt: skip
    # Of the rest of the sweep nothing is timed: no cell has begun, or all have ended.
    folder = elsewhere / "multirun"

    def at_least(count: int, name: str) -> bool:
        return len([*folder.glob(f"*/*/{name}")]) >= count or started.poll() is not None

    wait_for(lambda: at_least(1, "logs/*"), "a rank", 90)
    spinning = subprocess.Popen([sys.executable, "-c", spin])
    host = CoreUseMeter()
    host.begin()
    try:
        wait_for(lambda: at_least(3, "result.json"), "three results", 90)
        use = host.end()
    finally:
        spinning.kill()
        spinning.wait()
    run = shared_train.finish(started, cwd=elsewhere)
    assert run.status == 0, run.err
    assert use is not None, host.missing
    return run, use


def results_of(run: Finished) -> list[CellResult]:
    return [cell.load_result() for _, cell in run.cells().values()]


def test_cells_share_the_host_and_name_everyone_who_did(packed: tuple[Finished, CoreUse]) -> None:
    run, _ = packed
    results = results_of(run)
    first, second, third = sorted(results, key=lambda r: r.started_at)
    assert overlap(first, second)
    assert third.started_at >= min(first.finished_at, second.finished_at)
    for one in results:
        beside = {r.name for r in results if r is not one and overlap(r, one)}
        assert beside <= set(one.co_tenants), "those that started later are named too"
    cores = [rank.device.cores for one in (first, second) for rank in one.ranks]
    assert len({core for own in cores for core in own}) == 2
    assert run.sweep.load_plan().policy == "packed"


def shares(run: Finished, *, busy: bool) -> list[float]:
    """What others had of the cores of each cell on the busy core, or on the other one."""
    return [
        foreign_cpu_share(one.ranks)
        for one in results_of(run)
        if (one.ranks[0].device.cores == (usable_cores()[0],)) == busy
    ]


def test_who_else_had_a_core_is_recorded(packed: tuple[Finished, CoreUse]) -> None:
    """Steps that sleep leave it nearly all of the core."""
    assert min(shares(packed[0], busy=True)) > 0.4


def test_a_neighbour_on_its_own_core_disturbs_nobody(packed: tuple[Finished, CoreUse]) -> None:
    run, host = packed
    others = (host.busy_s - host.own_s) / (host.window_s * host.cores)
    if others > FOREIGN_CPU_UP_TO / 4:
        pytest.skip(f"others had {others:.0%} of this host meanwhile")
    assert max(shares(run, busy=False)) < FOREIGN_CPU_UP_TO
