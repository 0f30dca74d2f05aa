"""``hydra.launcher.policy=packed``: cells side by side, each on its own cores, all named."""

from __future__ import annotations

import pytest

from fakes.train_command import LEAN, Train
from scalewise.host import usable_cores
from scalewise.records import CellResult


def overlap(a: CellResult, b: CellResult) -> bool:
    return a.started_at < b.finished_at and b.started_at < a.finished_at


@pytest.mark.slow
@pytest.mark.skipif(len(usable_cores()) < 2, reason="needs two cores")
def test_cells_share_the_host_and_name_everyone_who_did(train: Train, own_code: str) -> None:
    run = train(
        *LEAN,
        "model._target_=mine.Faulty",
        "dataset._target_=mine.Data",
        "batch_size=16",
        "+model.step_ms=100",
        "hardware=cpu",
        "hardware.cores_per_device=1",
        "hydra.launcher.policy=packed",
        "seed=1,2,3",
        "-m",
        cwd=own_code,
    )
    assert run.status == 0, run.err
    results = [cell.load_result() for _, cell in run.cells().values()]
    first, second, third = sorted(results, key=lambda r: r.started_at)
    assert overlap(first, second)
    assert third.started_at >= min(first.finished_at, second.finished_at)
    for one in results:
        beside = {r.name for r in results if r is not one and overlap(r, one)}
        assert beside <= set(one.co_tenants), "those that started later are named too"
    cores = [rank.device.cores for one in (first, second) for rank in one.ranks]
    assert len({core for own in cores for core in own}) == 2
    assert run.sweep.load_plan().policy == "packed"
