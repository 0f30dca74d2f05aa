"""A delay put into a phase appears in that phase, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fakes.train_command import LEAN, Train, copy_own_code
from scalewise.analysis.balance import measure_balance
from scalewise.records import PHASES, StepSeries, read_steps

pytestmark = pytest.mark.timing

INJECTED_MS = {
    "data_wait": 12.0,
    "h2d": 14.0,
    "forward": 16.0,
    "backward": 18.0,
    "optimizer": 20.0,
    "other": 22.0,
}
LATE_MS = 20.0


@pytest.fixture(scope="module")
def delayed(shared_train: Train, tmp_path_factory: pytest.TempPathFactory) -> StepSeries:
    """The timed steps of a cell with a different delay in every phase, all at once."""
    mine = copy_own_code(tmp_path_factory.mktemp("user") / "elsewhere")
    delays = [
        f"+model.{phase}_ms={ms}" for phase, ms in INJECTED_MS.items() if phase != "data_wait"
    ]
    run = shared_train(
        *LEAN,
        "max_steps=20",
        "validation=never",
        "batch_size=16",
        "model._target_=mine.SlowModule",
        "dataset._target_=mine.SlowData",
        f"+dataset.batch_ms={INJECTED_MS['data_wait']}",
        *delays,
        cwd=mine,
    )
    assert run.status == 0, run.err
    return read_steps(run.only_cell().steps_path(0), 0).timed()


@pytest.mark.parametrize("phase", INJECTED_MS)
def test_a_delay_appears_in_its_phase(delayed: StepSeries, phase: str) -> None:
    """The model itself takes well under a millisecond.

    A sleep is never shorter than asked, and longer where the host is busy: the step that was
    disturbed least is the one to hold against it.
    """
    measured = float(np.min(delayed.column(phase)))
    assert INJECTED_MS[phase] <= measured <= 1.1 * INJECTED_MS[phase] + 0.5


def test_the_phases_add_up_to_the_step(delayed: StepSeries) -> None:
    total = np.nansum([delayed.column(phase) for phase in PHASES], axis=0)
    np.testing.assert_allclose(total, delayed.column("step"), rtol=1e-4)
    assert np.isnan(delayed.column("exposed_comm")).all()


def test_a_slow_rank_is_found_by_its_arrival(train: Train, own_code: Path) -> None:
    """Both ranks' steps are equally long, and backward blames the healthy one."""
    run = train(
        *LEAN,
        "strategy=ddp",
        "batch_size=16",
        "model._target_=mine.SlowModule",
        f"+model.forward_ms={LATE_MS}",
        "+model.rank=1",
        "dataset._target_=mine.Data",
        "validation=never",
        cwd=own_code,
    )
    assert run.status == 0, run.err
    folder = run.only_cell()
    series = [read_steps(folder.steps_path(rank), rank) for rank in range(2)]
    balance = measure_balance(series, 2)
    assert balance.slowest_rank == 1
    assert balance.grade == "poor"
    assert balance.behind_ms == pytest.approx(LATE_MS, rel=0.25)
    steps = [float(np.median(one.timed().column("step"))) for one in series]
    assert steps[0] == pytest.approx(steps[1], rel=0.1)
    waits = [float(np.median(one.timed().column("exposed_comm"))) for one in series]
    assert waits[0] > 0.7 * LATE_MS > waits[1]
