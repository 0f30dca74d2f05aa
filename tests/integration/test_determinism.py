"""``deterministic=true``: the same cell twice gives the same losses to the last bit."""

from fakes.train_command import Train
from fakes.twins import TWINS, check_twins


def test_losses_are_bit_identical_twice(train: Train) -> None:
    run = train("-m", "strategy=ddp", "hydra.launcher.warm=true", *TWINS)
    assert run.status == 0, run.err
    check_twins(run.cells().values(), configurations=1)
