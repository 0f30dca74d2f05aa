"""Cells of one and of two GPUs side by side, eager and replayed: who had what, and equal losses."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from fakes.gpus import REHEARSES, gpus, needs
from fakes.proofs import AUTO_STRATEGY, check_decision, losses_of, overlap
from fakes.train_command import Finished, Train
from scalewise.host import usable_cores
from scalewise.records import CellFolder

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]

STEPS = 60
# In a rehearsal two seeds stand for the two ways of executing.
VARIED = "seed=1,2" if REHEARSES else "execution=eager,cudagraph"


@pytest.fixture(scope="module")
def sweep(train: Train) -> Finished:
    """Four cells: two of one GPU, two of both."""
    run = train(
        "-m", "strategy=single,ddp", VARIED, "hydra.launcher.policy=packed", "tracking=none",
        "model._target_=lit.Witness", "dataset=tabular", f"max_steps={STEPS}",
        "log_every_n_steps=1", "validation=never",
    )  # fmt: skip
    assert run.status == 0, run.err
    return run


def cells(sweep: Finished, strategy: str) -> list[CellFolder]:
    folders = [folder for _, folder in sweep.cells().values()]
    return [f for f in folders if f.load_config()["strategy"]["name"] == strategy]


def seen(cell: CellFolder, rank: int) -> Mapping[str, Any]:
    """What a rank saw of GPUs and cores, from inside."""
    lines = cell.log_path(rank, "out").read_text().splitlines()
    (line,) = [one for one in lines if one.startswith('{"gpus"')]
    told: Mapping[str, Any] = json.loads(line)
    return told


@needs(2, on_cpu=True)
def test_cells_of_one_gpu_ran_side_by_side_and_name_each_other(sweep: Finished) -> None:
    first, second = (cell.load_result() for cell in cells(sweep, "single"))
    assert overlap(first, second)
    assert second.name in first.co_tenants and first.name in second.co_tenants
    own = [set(result.ranks[0].device.cores) for result in (first, second)]
    assert own[0].isdisjoint(own[1])
    for wide in (cell.load_result() for cell in cells(sweep, "ddp")):
        assert not any(overlap(wide, other) for other in (first, second))
        assert wide.co_tenants == ()


@needs(2, on_cpu=True)
def test_each_rank_was_bound_to_cores_of_its_own_near_its_gpu(sweep: Finished) -> None:
    near = {gpu.uuid: set(gpu.cores) & set(usable_cores()) for gpu in gpus()}
    for cell in (*cells(sweep, "single"), *cells(sweep, "ddp")):
        for rank in cell.load_result().ranks:
            own = set(rank.device.cores)
            assert own and own == set(seen(cell, rank.rank)["cores"])
            assert own <= (near.get(rank.device.uuid or "") or set(usable_cores()))


@needs(2)
def test_each_cell_saw_its_own_gpus_and_no_others(sweep: Finished) -> None:
    both = [gpu.uuid for gpu in gpus()]
    used = []
    for cell in (*cells(sweep, "single"), *cells(sweep, "ddp")):
        leased = [device.uuid for device in cell.load_provenance().devices]
        result = cell.load_result()
        assert [rank.device.uuid for rank in result.ranks] == leased
        assert all(seen(cell, rank.rank)["gpus"] == leased for rank in result.ranks)
        used.append(leased)
    assert (sorted(used[:2]), used[2:]) == (sorted([uuid] for uuid in both), [both, both])


@needs(2)
@pytest.mark.parametrize("strategy", ["single", "ddp"])
def test_replayed_steps_learn_what_eager_ones_do(sweep: Finished, strategy: str) -> None:
    by_execution = {c.load_config()["execution"]["name"]: c for c in cells(sweep, strategy)}
    replayed, eager = by_execution["cudagraph"], by_execution["eager"]
    for rank in replayed.load_result().ranks:
        assert (rank.execution.ran, rank.execution.fell_back_because) == ("cudagraph", None)
        assert rank.execution.graphs == 1
        expected = losses_of(eager, rank.rank)
        assert len(expected) == STEPS
        assert len(set(expected)) > STEPS / 2, "a loss that stays proves nothing"
        assert losses_of(replayed, rank.rank) == pytest.approx(expected, rel=1e-4)


@needs(2, on_cpu=True)
def test_the_better_strategy_is_trained_and_says_why(train: Train) -> None:
    check_decision(train(*AUTO_STRATEGY))
