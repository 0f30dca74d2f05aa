"""Each rank stays on its own GPU, and nothing of ours stops all ranks at once."""

import functools

import numpy as np
import pytest

from fakes.gpus import REHEARSES, needs
from fakes.train_command import Train
from scalewise.analysis import CellRecords, load_sweep
from scalewise.analysis.disturbances import disturbances
from scalewise.analysis.step_path import step_edges_s
from scalewise.analysis.steps import LONG_MEDIANS

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]

STEPS, STEP_MS = 150, 30
"""Four seconds: enough samples of the driver's process list, which is read every second."""
SETTLED_S = 1.0


def trained(train: Train, strategy: str) -> CellRecords:
    """A cell of steady steps whose loss is read at every one."""
    run = train(
        f"strategy={strategy}", "model._target_=lit.Witness", f"+model.step_ms={STEP_MS}",
        f"max_steps={STEPS}", "warmup_steps=2", "log_every_n_steps=1", "tracking=none",
        "dataset=tabular", "validation=never", "monitor.interval_s=0.5",
    )  # fmt: skip
    assert run.status == 0, run.err
    (cell,) = load_sweep(run.only_cell().path).cells
    return cell


@pytest.mark.parametrize(
    ("strategy", "ranks"),
    [pytest.param("single", 1, marks=needs(1, on_cpu=True)),
     pytest.param("ddp", 2, marks=needs(2, on_cpu=True))],
)  # fmt: skip
def test_ranks_keep_to_gpus_and_no_stall_hits_all(train: Train, strategy: str, ranks: int) -> None:
    cell = trained(train, strategy)
    assert cell.result is not None and len(cell.steps) == ranks
    remarks = disturbances(cell)
    found = {one.code for one in remarks}
    if REHEARSES:
        # A busy host stalls all ranks too.
        assert found <= {"common_stall"}, remarks
        return
    assert found <= {"not_told"}, remarks
    assert not long_for_all(cell)
    assert not any("extra_memory_on_gpu0" in one.text for one in remarks), remarks
    listed = [
        sample.processes
        for series in cell.devices
        for row in series.samples
        for sample in row.values()
    ]
    if not any(listed):
        pytest.skip("the driver lists no processes here, as in a container: nobody can be named")
    assert not found, remarks


def long_for_all(cell: CellRecords) -> list[int]:
    """Steps after the first second in which every rank took above three of its medians."""
    long = []
    for one in cell.steps:
        ms = one.column("step")
        settled = step_edges_s(one)[:-1] > step_edges_s(one)[0] + SETTLED_S
        long.append(set(np.flatnonzero((ms > LONG_MEDIANS * np.nanmedian(ms)) & settled)))
    return sorted(functools.reduce(set.intersection, long))
