"""A delay put into a phase appears in that phase, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fakes.train_command import LEAN, Train, copy_own_code
from scalewise.analysis.balance import measure_balance
from scalewise.records import PHASES, StepSeries, read_steps

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
    """A sleep is never shorter than asked, however busy the host is.

    How much of it lands elsewhere: ``benchmarks/anatomy_injection.py``.
    """
    assert (delayed.column(phase) >= INJECTED_MS[phase]).all()


def test_the_phases_add_up_to_the_step(delayed: StepSeries) -> None:
    total = np.nansum([delayed.column(phase) for phase in PHASES], axis=0)
    np.testing.assert_allclose(total, delayed.column("step"), rtol=1e-4)
    assert np.isnan(delayed.column("exposed_comm")).all()


def test_a_slow_rank_is_found_by_its_arrival(train: Train, own_code: Path) -> None:
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
    assert measure_balance(series, 2).slowest_rank == 1
    waits = [float(np.median(one.timed().column("exposed_comm"))) for one in series]
    assert waits[0] > waits[1]
