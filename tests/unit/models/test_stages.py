"""Models cut into stages compute what they compute whole, at as equal a cost as can be."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from scalewise.models import SplitsIntoStages, SplitsMatrices, split
from scalewise.models.contract import balance
from scalewise.models.gpt2 import Gpt2
from scalewise.models.mlp import Mlp
from scalewise.models.series import Recurrent
from scalewise.models.text_classifier import TextClassifier


def gpt2() -> tuple[Any, Tensor]:
    return Gpt2(50, 16, layers=3, heads=2, width=24), torch.randint(0, 50, (3, 16))


def mlp() -> tuple[Any, Tensor]:
    return Mlp(10, [64, 8, 8], 2), torch.randn(3, 10)


def classifier() -> tuple[Any, Tensor]:
    model = TextClassifier(
        50, 12, classes=4, width=16, heads=2, layers=2, feedforward_width=32, dropout=0.0
    )
    return model, torch.tensor([[3, 4, 5, 0, 0, 0], [6, 7, 8, 9, 1, 2]])


def learned_positions() -> tuple[Any, Tensor]:
    model = TextClassifier(
        50, 12, classes=4, width=16, heads=2, layers=2, feedforward_width=32, dropout=0.0,
        positions="learned",
    )  # fmt: skip
    return model, torch.tensor([[3, 4, 5, 0, 0, 0], [6, 7, 8, 9, 1, 2]])


MODELS = [gpt2, mlp, classifier, learned_positions]


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("make", MODELS)
def test_stages_one_after_another_are_the_model(make: Any, stages: int) -> None:
    model, x = make()
    hidden = x
    for stage in split(model.pipeline_units(), stages):
        hidden = stage(hidden, x)
    torch.testing.assert_close(hidden, model(x), rtol=0, atol=0)


@pytest.mark.parametrize("make", MODELS)
def test_stages_hold_the_model_s_own_parameters_and_all_of_them(make: Any) -> None:
    model, _ = make()
    held = {id(p) for stage in split(model.pipeline_units(), 2) for p in stage.parameters()}
    assert held == {id(p) for p in model.parameters()}


@pytest.mark.parametrize("make", MODELS)
def test_the_costs_of_the_units_are_the_model_s_operations(make: Any) -> None:
    model, _ = make()
    assert sum(u.flops for u in model.pipeline_units()) == model.flops_per_sample()


def test_gpt2_shares_its_embedding_between_first_and_last_stage() -> None:
    model, _ = gpt2()
    first, last = split(model.pipeline_units(), 2)
    shared = {id(p) for p in first.parameters()} & {id(p) for p in last.parameters()}
    assert shared == {id(model.token_embedding.weight)}


def test_the_output_layer_of_gpt2_counts_for_the_balance() -> None:
    with torch.device("meta"):
        model = Gpt2(50304, 1024, layers=12, heads=12, width=768)
    units = model.pipeline_units()
    costs = [u.flops for u in units]
    first, second = balance(costs, 2)
    assert len(first) == 9  # the embedding and 8 blocks; 4 blocks and the output layer
    assert sum(costs[i] for i in first) == pytest.approx(sum(costs) / 2, rel=0.1)
    assert list(second)[-1] == len(units) - 1


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_no_other_cut_makes_the_dearest_stage_cheaper(stages: int) -> None:
    costs = [0.0, 3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0]
    found = balance(costs, stages)
    assert [i for one in found for i in one] == list(range(len(costs)))
    assert all(len(one) for one in found)
    every = itertools.combinations(range(1, len(costs)), stages - 1)
    best = min(
        max(sum(costs[a:b]) for a, b in itertools.pairwise((0, *cuts, len(costs))))
        for cuts in every
    )
    assert max(sum(costs[i] for i in one) for one in found) == best


def test_more_stages_than_units_are_refused() -> None:
    model, _ = mlp()
    with pytest.raises(ValueError, match=r"stages: found 5; allowed: 1 to 4 for this model"):
        split(model.pipeline_units(), 5)


def test_models_say_themselves_what_they_can() -> None:
    can = {
        make().__class__.__name__: (
            isinstance(make(), SplitsIntoStages),
            isinstance(make(), SplitsMatrices),
        )
        for make in (
            lambda: gpt2()[0],
            lambda: mlp()[0],
            lambda: classifier()[0],
            lambda: Recurrent("lstm", 10, 6, width=12, layers=2, targets=2),
        )
    }
    assert can == {
        "Gpt2": (True, True),
        "Mlp": (True, False),
        "TextClassifier": (True, True),
        "Recurrent": (False, False),
    }


@pytest.mark.parametrize("make", [gpt2, classifier])
def test_every_matrix_of_the_blocks_is_cut_once(make: Any) -> None:
    model, _ = make()
    cuts = model.tensor_cuts()
    named = [*cuts.fused_qkv, *cuts.outputs, *cuts.inputs]
    linear = [
        name
        for name, part in model.named_modules()
        if isinstance(part, nn.Linear) and name != "head"
    ]
    assert sorted(named) == sorted(linear)
