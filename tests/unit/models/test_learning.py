"""The models learn the data they are meant for, at sizes a CPU trains in seconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from scalewise.datasets.tabular import Tabular
from scalewise.datasets.text_classification import AgNews
from scalewise.datasets.text_file import Stdlib
from scalewise.models.gpt2 import Gpt2
from scalewise.models.mlp import Mlp
from scalewise.models.text_classifier import TextClassifier

AG_NEWS = Path(__file__).parents[4] / "shared" / "data" / "ag_news_test.csv"


def trained(model: Any, data: Any, steps: int, batch_size: int, lr: float) -> tuple[float, Any]:
    """Validation loss and metrics after ``steps``."""
    random = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    model.train()
    order: list[torch.Tensor] = []
    for _ in range(steps):
        if not order:
            shuffled = torch.randperm(len(data.train), generator=random)
            order = [batch for batch in shuffled.split(batch_size) if len(batch) == batch_size]
        x, target = data.train.__getitems__(order.pop().tolist())
        optimizer.zero_grad()
        model.loss(model(x), target).backward()
        optimizer.step()
    model.eval()
    metrics, total = model.metrics(), 0.0
    with torch.no_grad():
        for rows in torch.arange(len(data.validation)).split(256):
            x, target = data.validation.__getitems__(rows.tolist())
            output = model(x)
            total += model.loss(output, target).item() * len(rows)
            metrics.update(output, target)
    return total / len(data.validation), metrics.compute()


@pytest.fixture(autouse=True)
def seeded_on_one_thread() -> Iterator[None]:
    """Small products lose more by sharing threads with a neighbour than they gain by two."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


@pytest.mark.skipif(not AG_NEWS.exists(), reason="the AG News test file is not on this machine")
def test_the_small_classifier_learns_real_news_in_an_epoch_and_a_half() -> None:
    model = TextClassifier(
        10_000, 48, classes=4, width=64, heads=2, layers=1, feedforward_width=128, dropout=0.2
    )
    data = AgNews(str(AG_NEWS), vocabulary_size=10_000, max_tokens=48)
    _, metrics = trained(model, data, steps=285, batch_size=32, lr=1e-3)
    assert metrics["accuracy"] >= 0.8


def test_a_tiny_gpt2_learns_python_better_than_the_frequency_of_its_bytes() -> None:
    model = Gpt2(256, 32, layers=1, heads=2, width=64)
    data = Stdlib(sequence_length=32, max_validation_samples=128)
    frequency = torch.bincount(
        data.train.__getitems__(range(0, 50_000, 7))[0].flatten(), minlength=256
    )
    share = frequency[frequency > 0] / frequency.sum()
    entropy = -(share * share.log()).sum().item()
    loss, _ = trained(model, data, steps=150, batch_size=32, lr=3e-3)
    assert loss < entropy - 0.3


@pytest.mark.parametrize(("signal", "least", "most"), [(0.8, 0.18, 0.4), (0.0, 0.95, 1.2)])
def test_a_perceptron_learns_what_there_is_to_learn_and_no_more(
    signal: float, least: float, most: float
) -> None:
    """1.0 is ignorance, 1 - signal the noise; without signal the data are the published ones."""
    data = Tabular(samples=4000, signal=signal)
    steps, lr = (300, 3e-3) if signal else (100, 1e-3)
    loss, _ = trained(Mlp(50, [64, 32], 3), data, steps, batch_size=128, lr=lr)
    assert least < loss < most
