"""``strategy=auto`` measures one GPU against two, and trains with what was better."""

import pytest

from fakes.gpus import needs
from fakes.proofs import AUTO_STRATEGY, check_decision
from fakes.train_command import Train

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]


@needs(2, on_cpu=True)
def test_the_better_strategy_is_trained_and_says_why(train: Train) -> None:
    check_decision(train(*AUTO_STRATEGY))
