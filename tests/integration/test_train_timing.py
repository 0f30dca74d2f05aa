"""A delay put into a phase appears in that phase, and nowhere else.

On a GPU's own timeline: ``tests/gpu/test_anatomy.py``.
"""

import numpy as np
import pytest

from fakes.step_files import common_steps
from fakes.train_command import LEAN, Train, copy_own_code
from scalewise.analysis.balance import measure_balance
from scalewise.records import StepSeries, read_steps

INJECTED_MS = {
    "data_wait": 12.0, "h2d": 14.0, "forward": 16.0, "backward": 18.0, "optimizer": 20.0,
    "other": 22.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def delayed(
    shared_train: Train, tmp_path_factory: pytest.TempPathFactory
) -> tuple[StepSeries, StepSeries]:
    """Both ranks of a cell whose second has a different delay in every phase, all at once."""
    mine = copy_own_code(tmp_path_factory.mktemp("user") / "elsewhere")
    delays = [
        f"+model.{phase}_ms={ms}" for phase, ms in INJECTED_MS.items() if phase != "data_wait"
    ]
    run = shared_train(
        *LEAN, "max_steps=20", "validation=never", "strategy=ddp", "batch_size=16",
        "model._target_=mine.SlowModule", "+model.rank=1", "dataset._target_=mine.SlowData",
        f"+dataset.batch_ms={INJECTED_MS['data_wait']}", *delays, cwd=mine,
    )  # fmt: skip
    assert run.status == 0, run.err
    folder = run.only_cell()
    first, second = (read_steps(folder.steps_path(rank), rank) for rank in (0, 1))
    return first, second


@pytest.mark.parametrize("phase", INJECTED_MS)
def test_a_delay_appears_in_its_phase(delayed: tuple[StepSeries, StepSeries], phase: str) -> None:
    """A sleep is never shorter than asked; one step in fifteen is undisturbed on a busy host too.

    The phases add up to the step, so what each has beyond its own sleep came from nowhere else.
    """
    found = delayed[1].timed().column(phase)
    assert (found >= INJECTED_MS[phase]).all()
    assert found.min() <= 1.1 * INJECTED_MS[phase]


def test_a_slow_rank_is_found_by_its_arrival(delayed: tuple[StepSeries, StepSeries]) -> None:
    assert measure_balance(common_steps(delayed, 2)).slowest_rank == 1
    waits = [float(np.median(one.timed().column("exposed_comm"))) for one in delayed]
    assert waits[0] > waits[1]
