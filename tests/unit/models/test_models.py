"""Costs, losses, learning and stages of the models, on the real layers."""

import functools
import itertools
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from scalewise.models import SplitsIntoStages, split
from scalewise.models.contract import balance
from scalewise.models.gpt2 import Gpt2
from scalewise.models.mlp import Mlp, SizedMlp
from scalewise.models.parts import sinusoidal_positions
from scalewise.models.series import Recurrent, SeriesTransformer
from scalewise.models.text_classifier import TextClassifier

SAMPLES = 3


def count_flops(model: Any, x: Tensor, target: Tensor) -> int:
    """What ``torch.utils.flop_counter`` sees in one forward and backward of this batch.

    All runs unfused meanwhile: the backward of fused attention recomputes ``Q K^T``, which no
    declared count includes, and fused recurrent layers are counted as nothing.
    """
    counter = FlopCounterMode(display=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="TF32 acceleration on top of oneDNN")
        with torch.backends.mkldnn.flags(enabled=False), counter, sdpa_kernel(SDPBackend.MATH):
            model.loss(model(x), target).backward()
    return int(counter.get_total_flops())


def mlp() -> tuple[Any, Tensor, Tensor]:
    return Mlp(10, [16, 8], 2), torch.randn(SAMPLES, 10), torch.randn(SAMPLES, 2)


def gpt2() -> tuple[Any, Tensor, Tensor]:
    tokens = torch.randint(0, 50, (SAMPLES, 17))
    return Gpt2(50, 16, layers=2, heads=2, width=24), tokens[:, :-1], tokens[:, 1:]


def classifier(positions: Any = "sinusoidal") -> tuple[Any, Tensor, Tensor]:
    model = TextClassifier(
        50, 12, classes=4, width=16, heads=2, layers=2, feedforward_width=32, dropout=0.0,
        positions=positions,
    )  # fmt: skip
    return model, torch.randint(1, 50, (SAMPLES, 12)), torch.tensor([0, 1, 3])


def lstm(kind: Any = "lstm") -> tuple[Any, Tensor, Tensor]:
    model = Recurrent(kind, 10, 6, width=12, layers=2, targets=2)
    return model, torch.randn(SAMPLES, 6, 10), torch.randn(SAMPLES, 2)


def series_transformer() -> tuple[Any, Tensor, Tensor]:
    model = SeriesTransformer(10, 6, width=12, heads=2, layers=2, feedforward_width=24, targets=2)
    return model, torch.randn(SAMPLES, 6, 10), torch.randn(SAMPLES, 2)


MODELS = [mlp, gpt2, classifier, lstm, functools.partial(lstm, "gru"), series_transformer]
ALL = pytest.mark.parametrize("make", MODELS)


@ALL
def test_declared_flops_are_what_torch_counts(make: Any) -> None:
    model, x, target = make()
    assert count_flops(model, x, target) == SAMPLES * model.flops_per_sample()
    assert torch.equal(model(x), model.eval()(x)), "nothing is dropped unasked"


@pytest.mark.parametrize(("width", "waves"), [(7, 4), (6, 3)])
def test_positions_are_sines_and_cosines_of_falling_frequency(width: int, waves: int) -> None:
    angles = torch.arange(9.0)[:, None] / 10_000 ** (torch.arange(waves) * 2 / width)
    table = sinusoidal_positions(9, width)
    torch.testing.assert_close(table[:, ::2], angles.sin())
    torch.testing.assert_close(table[:, 1::2], angles[:, : width // 2].cos())


@pytest.mark.parametrize("parameters", [50_000, 258_432, 1_000_000, 25_000_000, 2_000_000_000])
def test_sized_models_have_the_size_asked_for(parameters: int) -> None:
    with torch.device("meta"):
        model = SizedMlp(parameters)
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(parameters, rel=0.02)
    assert len([layer for layer in model.layers if isinstance(layer, nn.Linear)]) == 5


@ALL
def test_loss_is_the_mean_over_samples(make: Any) -> None:
    model, x, target = make()
    model.eval()
    whole = model.loss(model(x), target)
    single = [model.loss(model(x[i : i + 1]), target[i : i + 1]) for i in range(SAMPLES)]
    assert whole.ndim == 0
    torch.testing.assert_close(whole, torch.stack(single).mean())
    metrics = model.metrics()
    metrics.update(model(x), target)
    assert all(value.item() >= 0 for value in metrics.compute().values())


@ALL
def test_the_loss_falls(make: Any) -> None:
    torch.manual_seed(0)
    model, x, target = make()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    losses = []
    for _ in range(40):
        loss = model.loss(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 3, "a model learns three samples by heart"


def test_token_accuracy_counts_tokens_over_uneven_batches() -> None:
    model, _, _ = gpt2()
    metrics = model.metrics()
    logits = nn.functional.one_hot(torch.tensor([[1, 2, 3], [4, 5, 6]]), 50).float()
    metrics.update(logits, torch.tensor([[1, 2, 3], [4, 0, 0]]))
    metrics.update(logits[:1, :1], torch.tensor([[1]]))
    assert metrics.compute()["accuracy"].item() == pytest.approx(5 / 7)


def test_gpt2_sees_no_later_token_and_a_classifier_no_padding() -> None:
    model, x, _ = gpt2()
    changed = x.clone()
    changed[:, 9:] = (changed[:, 9:] + 1) % 50
    before, after = model(x), model(changed)
    torch.testing.assert_close(before[:, :9], after[:, :9])
    assert not torch.allclose(before[:, 9:], after[:, 9:])
    model, x, _ = classifier()
    model.eval()
    padded = x.clone()
    padded[:, 7:] = 0
    torch.testing.assert_close(model(padded), model(x[:, :7]))


def test_a_model_too_small_for_its_data_says_so() -> None:
    model, _, _ = gpt2()
    model.check_data({"vocabulary_size": 50, "sequence_length": 16})
    model.check_data({"source": "a user's data, of which nothing is known"})
    for one, data, said in (
        (model, {"vocabulary_size": 256}, "vocabulary_size: found 50; allowed: at least 256"),
        (model, {"sequence_length": 17}, "context_length: found 16; allowed: at least 17"),
        (Mlp(10, [4], 2), {"features": 50, "targets": 2}, "features: found 10; allowed: 50"),
    ):
        with pytest.raises(ValueError, match=f"^model.{said}"):
            one.check_data(data)
    with pytest.raises(ValueError, match=r"^width: found 64; allowed: a multiple of heads \(5\)$"):
        Gpt2(256, 8, layers=1, heads=5, width=64)


LEARNED = functools.partial(classifier, "learned")
IN_STAGES = pytest.mark.parametrize("make", [gpt2, mlp, classifier, LEARNED])


@pytest.mark.parametrize("stages", [1, 2, 3])
@IN_STAGES
def test_stages_one_after_another_are_the_model(make: Any, stages: int) -> None:
    model, x, _ = make()
    if isinstance(model, TextClassifier):
        x[0, 5:] = 0
    hidden = x
    for stage in split(model.pipeline_units(), stages):
        hidden = stage(hidden, x)
    torch.testing.assert_close(hidden, model(x), rtol=0, atol=0)


@IN_STAGES
def test_stages_hold_all_parameters_and_units_cost_the_model_s_operations(make: Any) -> None:
    model, _, _ = make()
    assert isinstance(model, SplitsIntoStages)
    assert not isinstance(lstm()[0], SplitsIntoStages)
    units = model.pipeline_units()
    held = {id(p) for stage in split(units, 2) for p in stage.parameters()}
    assert held == {id(p) for p in model.parameters()}
    assert sum(u.flops for u in units) == model.flops_per_sample()
    if isinstance(model, Gpt2):
        first, last = ({id(p) for p in stage.parameters()} for stage in split(units, 2))
        assert first & last == {id(model.embedding.token.weight)}, "as it is tied"
    with pytest.raises(ValueError, match=rf"stages: found 9; allowed: 1 to {len(units)} for this"):
        split(units, 9)


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_no_other_cut_makes_the_dearest_stage_cheaper(stages: int) -> None:
    costs = [0.0, 3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0]
    found = balance(costs, stages)
    assert [i for one in found for i in one] == list(range(len(costs)))
    assert all(len(one) for one in found)
    best = min(
        max(sum(costs[a:b]) for a, b in itertools.pairwise((0, *cuts, len(costs))))
        for cuts in itertools.combinations(range(1, len(costs)), stages - 1)
    )
    assert max(sum(costs[i] for i in one) for one in found) == best
