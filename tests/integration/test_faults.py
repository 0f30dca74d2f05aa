"""A small part of ``make self-test``: a fault planted into a real cell is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fakes.train_command import ROOT, Finished, Train
from scalewise.analysis import Configuration, configurations, load_sweep, make_budget

PATH = os.pathsep.join([str(ROOT / "src"), str(ROOT / "benchmarks")])
WORKLOAD = (
    "max_steps=40", "warmup_steps=5", "tracking=none", "monitor.devices=false",
    "validation=never", "dataset.samples=1024", "batch_size=64",
)  # fmt: skip


@pytest.fixture(scope="module")
def planted(shared_train: Train) -> Finished:
    """A fault that no neighbour of this host hides; those of times are ``make self-test``'s."""
    # The second kind plants nothing.
    fault = ("+fault._target_=faults.plant.PlantedFault", "+fault.kind=no_sampler,configuration")
    return shared_train(
        "-m", "hydra.launcher.warm=true", "strategy=ddp", *WORKLOAD, *fault, PYTHONPATH=PATH
    )


def by_fault(sweep: Path) -> dict[str, Configuration]:
    """The test knows what was planted; the analysis does not."""
    configs = configurations(load_sweep(sweep))
    return {str((c.cells[0].config or {})["fault"]["kind"]): c for c in configs}


def test_a_planted_fault_makes_the_run_invalid(planted: Finished) -> None:
    assert planted.status == 4, planted.err
    assert planted.folder is not None
    config = by_fault(planted.folder)["no_sampler"]
    assert [one.code for one in config.invalid] == ["shards_overlap"]


def test_its_healthy_twin_is_not_accused_of_it(planted: Finished) -> None:
    assert planted.folder is not None
    healthy = by_fault(planted.folder)["configuration"]
    assert healthy.invalid == ()
    budget = make_budget(healthy)
    assert budget is not None
    assert budget.loss("transfer") is not None
    (run,) = healthy.runs
    assert run.cell.result is not None
    for rank in run.cell.result.ranks:
        delay = rank.run_queue_ms_per_step
        assert (delay is None) == ("run_queue_ms_per_step" in rank.missing)
        assert delay is None or delay >= 0
