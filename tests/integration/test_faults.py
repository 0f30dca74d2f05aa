"""A small part of ``make self-test``: faults planted into real cells are named first."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.train_command import Finished, Train
from scalewise.analysis.diagnose import diagnose
from scalewise.analysis.load import load_sweep
from scalewise.analysis.runs import Configuration, configurations

# The diagnosis names a host that is shared with others before some of these faults.
pytestmark = pytest.mark.alone

WORKLOAD = (
    "max_steps=40", "warmup_steps=5", "tracking=none", "monitor.devices=false",
    "validation=never", "dataset.samples=1024", "batch_size=64",
)  # fmt: skip
FAULTS = {
    "no_sampler": "not sharded",
    "slow_rank": "straggler",
    "slow_loader": "input-bound",
    "per_replica_import": "per-replica throughput",
}


def plant(train: Train, faults: str) -> Finished:
    return train("-m", "strategy=ddp", *WORKLOAD, "allow_faults=true", f"fault={faults}")


@pytest.fixture(scope="module")
def planted(shared_train: Train) -> Finished:
    return plant(shared_train, f"none,{','.join(FAULTS)}")


def by_fault(sweep: Path) -> dict[str, Configuration]:
    """The test knows what was planted; the diagnosis does not."""
    configs = configurations(load_sweep(sweep))
    return {
        str((c.cells[0].config or {}).get("fault", {"name": "none"})["name"]): c for c in configs
    }


@pytest.mark.timing
@pytest.mark.parametrize(("fault", "limit"), FAULTS.items())
def test_a_planted_fault_is_named_first(
    planted: Finished, train: Train, fault: str, limit: str, request: pytest.FixtureRequest
) -> None:
    if request.node.execution_count > 1:
        planted = plant(train, f"none,{fault}")
    assert planted.folder is not None, planted.err
    config = by_fault(planted.folder)[fault]
    found = diagnose(config)
    is_invalid = fault == "no_sampler"
    assert [one.code for one in config.invalid] == ["shards_overlap"] * is_invalid
    if is_invalid:
        assert planted.status == 4, planted.err
    assert found[0].limit == limit, [str(d) for d in found]
    if fault == "slow_rank":
        assert found[0].rank == 1
        assert found[0].ms == pytest.approx(5.0, rel=0.5)


def test_its_healthy_twin_is_not_accused_of_it(planted: Finished) -> None:
    assert planted.folder is not None
    healthy = diagnose(by_fault(planted.folder)["none"])
    assert not {d.limit for d in healthy} & {"not sharded", "uneven shards"}
    (run,) = by_fault(planted.folder)["none"].runs
    assert run.cell.result is not None
    for rank in run.cell.result.ranks:
        delay = rank.run_queue_ms_per_step
        assert (delay is None) == ("run_queue_ms_per_step" in rank.missing)
        assert delay is None or delay >= 0


def test_a_fault_is_refused_unless_it_is_allowed(train: Train) -> None:
    run = train("fault=slow_rank", *WORKLOAD)
    assert run.status == 2
    assert "fault: found 'slow_rank'" in run.err
    assert "allow_faults=true" in run.err
    assert run.folder is None
