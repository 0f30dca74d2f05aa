"""Somebody else's process on a GPU: its cell waits, or with ``sweep.foreign_wait_s=0`` does not."""

from collections.abc import Iterator

import pytest

from fakes.gpus import Stranger, a_stranger, gpus, needs
from fakes.proofs import TWINS, check_twins
from fakes.train_command import SMALL, Train

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400), needs(2)]


@pytest.fixture(scope="module")
def stranger() -> Iterator[Stranger]:
    """Holds memory of the second GPU until a test makes him leave."""
    with a_stranger(gpus()[1]) as one:
        one.take()
        yield one


def test_skip_leaves_out_what_needs_his_gpu_alone(train: Train, stranger: Stranger) -> None:
    """What runs is the same cell twice, on the GPU that is left: deterministic to the last bit."""
    run = train("-m", "strategy=single,ddp", *TWINS, "sweep.foreign_wait_s=0")
    assert run.status == 3, run.err
    cells = list(run.cells().values())
    alone = [(c, f) for c, f in cells if f.load_config()["strategy"]["name"] == "single"]
    check_twins(alone, configurations=1)
    for _, folder in alone:
        result = folder.load_result()
        assert [rank.device.uuid for rank in result.ranks] == [gpus()[0].uuid]
        assert not any(stranger.gpu.uuid in who for who in result.co_tenants)
    left_out = [f for c, f in cells if f.load_config()["strategy"]["name"] == "ddp"]
    assert len(left_out) == 2
    for folder in left_out:
        (attempt,) = folder.attempts()
        assert (attempt.outcome, attempt.cause) == ("skipped", "host")
        assert f"GPU {stranger.gpu.index} has " in attempt.message
        assert "sweep.foreign_wait_s=0" in attempt.message
        assert not folder.log_path(0, "err").exists(), "no rank was started"


def test_wait_begins_once_he_has_gone(train: Train, stranger: Stranger) -> None:
    before = train.sweeps()
    process = train.start("strategy=ddp", *SMALL)
    assert process.stderr is not None
    said = next(line for line in process.stderr if line.startswith("waiting: "))
    assert f"GPU {stranger.gpu.index} has " in said
    (sweep,) = train.sweeps() - before
    assert not list(sweep.glob("*/logs")), "no rank was started"
    stranger.leave()
    run = train.finish(process, before)
    assert run.status == 0, run.err
    ranks = run.only_cell().load_result().ranks
    assert [rank.device.uuid for rank in ranks] == [gpu.uuid for gpu in gpus()]
