"""What is taken for a loss of what ``training_step`` returned."""

from __future__ import annotations

import pytest
import torch

from scalewise.train.recording.step_timer import loss_of

LOSS = torch.tensor(0.5)


@pytest.mark.parametrize("outputs", [LOSS, {"loss": LOSS, "extra": object()}])
def test_a_loss_is_found_alone_and_among_others(outputs: object) -> None:
    assert loss_of(outputs) is LOSS


def test_a_number_in_a_dimension_of_its_own_is_a_loss() -> None:
    assert loss_of(LOSS.reshape(1, 1)) is not None


@pytest.mark.parametrize(
    "outputs",
    [
        None,
        {},
        {"loss": "text"},
        torch.ones(3),
        {"loss": torch.ones(2, 2)},
        torch.ones(0),
        torch.tensor(1j),
    ],
    ids=["none", "nothing", "text", "vector", "matrix", "empty", "complex"],
)
def test_what_is_no_single_real_number_is_no_loss(outputs: object) -> None:
    """Who optimizes by hand may return anything, which must not end his run."""
    assert loss_of(outputs) is None
