"""The loss of a script: what it calls backward on, of every tenth step."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from scalewise.records import CellFolder, read_metrics
from scalewise.script.losses import Losses
from scalewise.train.recording import MetricsRecorder


class Script:
    """Ten steps of it make a row."""

    def __init__(self, folder: Path) -> None:
        cell = CellFolder(folder)
        self.path = cell.metrics_path(0)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.steps = cast(Any, SimpleNamespace(steps=0, samples=0, samples_per_step=4))
        self.metrics = MetricsRecorder(cell, self.steps, 10, loss_name="backward_loss")
        self.metrics.open(0, torch.device("cpu"))
        self.losses = Losses(self.steps, self.metrics, 2)

    def step(self, *backwards: Any) -> None:
        for tensors in backwards:
            self.losses.begin_backward(tensors)
        self.steps.steps += 1
        self.steps.samples += 4
        self.losses.end_step()

    def rows(self) -> list[tuple[int, int, dict[str, float | None]]]:
        self.metrics.drain(wait=True)
        if not self.metrics.rows:
            return []
        read = list(read_metrics(self.path))
        assert {row.epoch for row in read} == {0}
        return [(row.step, row.samples, dict(row.values)) for row in read]


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Script]:
    script = Script(tmp_path)
    yield script
    script.metrics.close()


def test_every_tenth_step_has_the_sum_of_its_batches(script: Script) -> None:
    for step in range(20):
        script.step(torch.tensor(step / 2.0), [torch.tensor(0.25)])
    assert script.rows() == [(10, 80, {"backward_loss": 4.75}), (20, 160, {"backward_loss": 9.75})]


@pytest.mark.parametrize(
    ("backwards", "values"),
    [  # what is no single number is no loss
        ([torch.ones(3), None, [torch.ones(()), torch.ones(())]], []),
        ([torch.tensor(float("nan"))], [None]),
        ([torch.tensor(3.0)], [3.0]),
    ],
)
def test_a_loss_is_one_number_as_it_was_and_not_as_its_memory_is_now(
    script: Script, backwards: list[Any], values: list[float | None]
) -> None:
    for _ in range(10):
        script.step(*backwards)
    for loss in backwards[:1]:
        loss.fill_(7.0)
    assert script.rows() == [(10, 80, {"backward_loss": value}) for value in values]


def test_a_scaled_loss_counts_as_it_was_before(script: Script) -> None:
    for _ in range(10):
        loss = torch.tensor(2.0, requires_grad=True) * 1.0
        scaled = loss * 65536.0
        script.losses.scale(loss, scaled)
        script.step(scaled)
    assert script.rows() == [(10, 80, {"backward_loss": 2.0})]
