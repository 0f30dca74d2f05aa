"""``strategy=auto`` from the command line: short cells, then training."""

import pytest

from fakes.proofs import AUTO_STRATEGY, check_decision
from fakes.train_command import Train
from scalewise.host import usable_cores

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(len(usable_cores()) < 2, reason="needs two cores"),
]


def test_the_better_strategy_is_trained_and_says_why(train: Train) -> None:
    check_decision(train(*AUTO_STRATEGY, "hardware=cpu", "hydra.launcher.warm=true"))
