"""Which weights go, when, and that they stay away."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from torch import nn

from scalewise.config import PruningConfig
from scalewise.optimizers import Pruner, UnprunableError
from scalewise.optimizers.orthogonal import muon
from scalewise.optimizers.spike_aware import spam
from scalewise.optimizers.standard import adamw, sgd
from scalewise.train.recording import Pruning
from scalewise.train.recording.summary import (
    optimizer_state_bytes,
    pruned_share,
    pruning_state_bytes,
    zero_share,
)


def schedule(kind: Any = "magnitude", **given: Any) -> PruningConfig:
    return PruningConfig("test", kind, **{"begin_step": 2, "end_step": 6, **given})


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        x = torch.randn(16, 8, generator=generator)
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))


def test_the_schedule_climbs_ever_slower_from_its_begin_to_its_end() -> None:
    config = schedule(sparsity=0.8, begin_step=10, end_step=20)
    climb = [config.sparsity_at(step) for step in range(9, 21)]
    rises = [b - a for a, b in itertools.pairwise(climb)]
    assert all(a > b > 0 for a, b in itertools.pairwise(rises))
    assert (climb[0], climb[-1], config.sparsity_at(99)) == (0, 0.8, 0.8)
    config = schedule(begin_step=10, end_step=21, every_n_steps=4)
    assert [s for s in range(30) if config.prunes_at(s)] == [10, 14, 18, 21]
    with pytest.raises(ValueError, match=r"^end_step: found 6"):
        schedule(begin_step=7)


@pytest.mark.parametrize("kind", ["magnitude", "movement", "adamw_state"])
@pytest.mark.parametrize("build", [adamw, spam])
def test_every_score_reaches_the_sparsity_and_keeps_it(kind: Any, build: Any) -> None:
    model = network()
    optimizer = build(model.parameters(), "cpu")
    Pruner(schedule(kind, sparsity=0.75), model.named_parameters(), optimizer)
    train(model, optimizer, 6)
    matrices = [model[0].weight, model[2].weight]
    gone = [matrix == 0 for matrix in matrices]
    assert [zero_share([matrix]) for matrix in matrices] == [0.75, 0.75]
    train(model, optimizer, 5)
    for matrix, before in zip(matrices, gone, strict=True):
        assert torch.equal(matrix == 0, before)
    assert not any((layer.bias == 0).any() for layer in (model[0], model[2]))
    assert pruned_share([optimizer]) == 0.75


@pytest.mark.parametrize(
    ("kind", "build", "weights", "gradients", "gone"),
    [
        ("magnitude", sgd, [0.5, -0.1, 0.2, -0.9], [1, 1, 1, 1], [1, 2]),
        # Descent lowers the first and raises the last: both towards 0, the others away from it.
        ("movement", sgd, [0.5, 0.1, -0.2, -0.9], [1, -1, 1, -1], [0, 3]),
        # Saliencies 1e-4, 1, 25, 4e-6.
        ("adamw_state", adamw, [1.0, 0.1, 1.0, 0.1], [0.01, 10, 5, 0.02], [0, 3]),
    ],
)
def test_each_score_takes_the_weights_that_matter_least(
    kind: str, build: Any, weights: list[float], gradients: list[float], gone: list[int]
) -> None:
    model = nn.Linear(4, 1, bias=False)
    optimizer = build(model.parameters(), "cpu", lr=1e-9)
    Pruner(schedule(kind, begin_step=2, end_step=2), model.named_parameters(), optimizer)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([weights]))
    for _ in range(2):
        model.weight.grad = torch.tensor([gradients], dtype=torch.float32)
        optimizer.step()
    assert (model.weight == 0).flatten().nonzero().flatten().tolist() == gone


def test_it_works_under_muon_and_leaves_embeddings_alone() -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"embedding": nn.Linear(6, 6), "hidden": nn.Linear(6, 6)})
    optimizer = muon(model.named_parameters(), "cpu")
    Pruner(schedule(begin_step=1, end_step=1), model.named_parameters(), optimizer)
    torch.stack([p.square().sum() for p in model.parameters()]).sum().backward()
    optimizer.step()
    assert zero_share([model["hidden"].weight]) == 0.5
    assert zero_share([model["embedding"].weight]) == 0


def test_movement_takes_a_buffer_more_than_the_masks() -> None:
    kept = {}
    for kind in ("magnitude", "movement", "adamw_state"):
        model = network()
        optimizer = adamw(model.parameters(), "cpu")
        pruner = Pruner(schedule(kind), model.named_parameters(), optimizer)
        train(model, optimizer, 6)
        kept[kind] = pruner.state_bytes()
    matrices = 4 * (model[0].weight.numel() + model[2].weight.numel())
    assert kept == {"magnitude": matrices, "movement": 2 * matrices, "adamw_state": matrices}


def test_what_cannot_be_pruned_is_refused() -> None:
    hidden, norm = nn.ModuleDict({"hidden": nn.Linear(6, 6)}), nn.LayerNorm(4)
    for build in (sgd, muon):
        optimizer = build(hidden.named_parameters(), "cpu")
        with pytest.raises(UnprunableError, match=r"^pruning: found adamw_state with .* adam"):
            Pruner(schedule("adamw_state"), hidden.named_parameters(), optimizer)
    with pytest.raises(UnprunableError, match=r"has no weight matrix; allowed: none$"):
        Pruner(schedule(), norm.named_parameters(), sgd(norm.parameters(), "cpu"))


def test_state_bytes_are_those_of_every_buffer_and_counter() -> None:
    model = nn.Linear(10, 10, bias=False)
    optimizer = adamw(model.parameters(), "cpu")
    assert optimizer_state_bytes([optimizer]) == 0
    model(torch.ones(1, 10)).sum().backward()
    optimizer.step()
    assert optimizer_state_bytes([optimizer]) == 2 * 100 * 4 + 4  # and the step counter
    assert optimizer_state_bytes([]) is zero_share([]) is None
    plain = sgd(nn.Linear(1, 1).parameters(), "cpu")
    assert pruned_share([plain]) is pruning_state_bytes([plain]) is None


class Regression(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        error: torch.Tensor = self.network(batch) - batch.sum(1, keepdim=True)
        return error.square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return adamw(self.parameters(), "cpu")


def fit(config: PruningConfig, steps: int, checkpoint: Path | None = None) -> pl.Trainer:
    """Equal batches: a bare Trainer that goes on within an epoch begins its data anew."""
    trainer = pl.Trainer(
        accelerator="cpu",
        max_steps=steps,
        plugins=[LightningEnvironment()],
        callbacks=[Pruning(config)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    batch = torch.randn(8, 8, generator=torch.Generator().manual_seed(3))
    data: Any = list(batch.repeat(8, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=8)
    trainer.fit(Regression(), loader, ckpt_path=checkpoint)
    return trainer


@functools.cache
def unstopped(config: PruningConfig) -> pl.Trainer:
    return fit(config, 16)


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.filterwarnings("ignore:.*srun.* command is available", "ignore:.*treespec")
@pytest.mark.filterwarnings("ignore:.*ended before the epoch ended")
class TestCallback:
    @pytest.mark.parametrize("kind", ["magnitude", "movement", "adamw_state"])
    @pytest.mark.parametrize("stop", [1, 5])
    def test_a_run_that_goes_on_prunes_as_if_it_had_not_stopped(
        self, tmp_path: Path, kind: str, stop: int
    ) -> None:
        config = schedule(kind, sparsity=0.6, begin_step=2, end_step=7, every_n_steps=2)
        whole = unstopped(config)
        fit(config, stop).save_checkpoint(tmp_path / "half.ckpt")
        resumed = fit(config, 16, tmp_path / "half.ckpt")
        ends = [vars(t.optimizers[0])["scalewise_pruner"].state_dict() for t in (whole, resumed)]
        assert ends[0]["steps"] == ends[1]["steps"] == 16
        for name in ("masks", "movement"):
            assert len(ends[0][name]) == len(ends[1][name])
            assert all(map(torch.equal, ends[0][name], ends[1][name])), name
        assert len(ends[0]["masks"]) == 2
        assert pruned_share(resumed.optimizers) == pytest.approx(0.6, abs=0.01)
        for one, other in zip(
            whole.lightning_module.parameters(), resumed.lightning_module.parameters(), strict=True
        ):
            assert torch.equal(one, other)

    def test_movement_is_scored_by_the_gradients_of_the_same_step(self) -> None:
        """Lightning makes them inside the optimizer's step, a plain loop before it."""
        scores = []
        for by_closure in (False, True):
            model = network()
            optimizer = sgd(model.parameters(), "cpu")
            pruner = Pruner(schedule("movement"), model.named_parameters(), optimizer)

            def closure(model: nn.Module = model, optimizer: Any = optimizer) -> torch.Tensor:
                optimizer.zero_grad()
                loss: torch.Tensor = model(torch.ones(4, 8)).square().mean()
                loss.backward()  # type: ignore[no-untyped-call]
                return loss

            for _ in range(3):
                if by_closure:
                    optimizer.step(closure)
                else:
                    closure()
                    optimizer.step()
            scores.append(pruner.state_dict()["movement"])
        assert all(map(torch.equal, *scores))
        assert all(score.abs().sum() > 0 for score in scores[0])

    def test_the_state_of_another_model_or_score_is_refused(self) -> None:
        model = network()
        pruner = Pruner(schedule(), model.named_parameters(), sgd(model.parameters(), "cpu"))
        wrong = {"steps": 1, "masks": [torch.ones(3, 3)], "movement": []}
        with pytest.raises(UnprunableError, match="found masks of 1 weights"):
            pruner.load_state_dict(wrong)
        scores = [torch.zeros_like(parameter) for parameter in pruner.parameters]
        with pytest.raises(UnprunableError, match="another score than magnitude"):
            pruner.load_state_dict({"steps": 1, "masks": [], "movement": scores})
        assert pruner.state_dict()["steps"] == 0
