"""No checkpoint runs code when a rank goes on from it, unless the user trusts it."""

import collections
import os
import pickle
import random
import time
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.demos.boring_classes import BoringModel

from fakes.small_fit import small_trainer
from scalewise.config import CheckpointConfig
from scalewise.records import CellFolder, Checkpoint, part_path, seal_checkpoint
from scalewise.train.checkpoint import PLAIN, Restarts, _random_states, _restore_random, refusal

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's advice on so small a training


class Malice:
    """Makes the file ``path`` when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


class Module(BoringModel):
    """Keeps whatever it is given among its hyper-parameters."""

    def __init__(self, option: Any = None) -> None:
        super().__init__()
        self.save_hyperparameters()

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2])]


def saved(cell: Path, option: Any = None) -> Path:
    """The sealed checkpoint of a cell whose module had this hyper-parameter."""
    part = part_path(cell, 2)
    part.mkdir(parents=True)
    trains = small_trainer(max_steps=2)
    trains.fit(Module(option))
    trains.save_checkpoint(part / "trainer.ckpt")
    torch.save(_random_states(), part / "rank0.pt")
    return seal_checkpoint(part, Checkpoint(2, 2, 1, (4,), ("a CPU",), {}, {}))


def go_on(path: Path, module: Module | None = None) -> pl.Trainer:
    """As a rank does it whose cell trusts nobody."""
    torch.serialization.add_safe_globals(PLAIN)
    again = small_trainer(max_steps=4)
    again.fit(module or Module(), ckpt_path=str(path / "trainer.ckpt"), weights_only=True)
    return again


@pytest.mark.parametrize(
    "option",
    [
        None,
        [1, {"path": Path("/x/y")}],
        collections.defaultdict(list),
        collections.OrderedDict(a=1),
    ],
)
def test_plain_hyperparameters_are_gone_on_from(tmp_path: Path, option: Any) -> None:
    path = saved(tmp_path / "cell", option)
    assert go_on(path, Module(option)).global_step == 4
    loaded = torch.load(path / "trainer.ckpt", weights_only=True)["hyper_parameters"]
    assert loaded["option"] == option


@pytest.mark.parametrize("as_hyperparameter", [True, False])
def test_a_malicious_pickle_does_not_run(tmp_path: Path, as_hyperparameter: bool) -> None:
    ran = tmp_path / "ran"
    path = saved(tmp_path / "cell")
    with pytest.raises(pickle.UnpicklingError) as caught:
        if as_hyperparameter:
            content = torch.load(path / "trainer.ckpt", weights_only=True)
            torch.save({**content, "hyper_parameters": Malice(ran)}, path / "trainer.ckpt")
            go_on(path)
        else:
            torch.save({"python": Malice(ran)}, path / "rank0.pt")
            torch.load(path / "rank0.pt", weights_only=True)
    refused = str(refusal(caught.value))
    assert "posix.mkdir" in refused and "checkpoint.trust=true" in refused
    assert not ran.exists()


@pytest.mark.parametrize(
    ("option", "named"),
    [
        (Namespace(a=1), "argparse.Namespace"),
        # torch allows the class, and refuses to put anything into it.
        pytest.param(
            collections.defaultdict(list, a=[1]),
            "collections.defaultdict",
            marks=pytest.mark.skipif(torch.__version__.startswith("2.6."), reason="is loaded"),
        ),
    ],
)
def test_another_class_is_named_in_one_line(tmp_path: Path, option: Any, named: str) -> None:
    path = saved(tmp_path / "cell", option)
    with pytest.raises(pickle.UnpicklingError) as caught:
        go_on(path)
    refused = str(refusal(caught.value))
    assert named in refused and "\n" not in refused


def test_random_states_come_back_as_plain_values(tmp_path: Path) -> None:
    np.random.normal()  # half of a pair of normal numbers is part of the state
    torch.save(_random_states(), tmp_path / "states")
    drawn = random.random(), np.random.normal(), np.random.random(), torch.rand(1).item()
    _restore_random(torch.load(tmp_path / "states", weights_only=True))
    again = random.random(), np.random.normal(), np.random.random(), torch.rand(1).item()
    assert again == drawn


def saving(monkeypatch: pytest.MonkeyPatch, seconds_a_step: float, **when: Any) -> list[int]:
    """After which of 40 batches it saves: each step has two, and every tenth ends an epoch."""
    clock = SimpleNamespace(steps=0, inside_step=False, restart_step=lambda: None)
    monkeypatch.setattr(time, "monotonic", lambda: seconds_a_step * clock.steps)
    rank: Any = SimpleNamespace(is_first=True, world_size=1)
    restarts = Restarts(CheckpointConfig(**when), CellFolder("none"), rank,
                        cast(Any, SimpleNamespace(steps=clock)))  # fmt: skip
    saved: list[int] = []
    monkeypatch.setattr(restarts, "_save", lambda _: saved.append(batch))
    progress = SimpleNamespace(is_last_batch=False)
    loop = SimpleNamespace(epoch_loop=SimpleNamespace(batch_progress=progress))
    strategy = SimpleNamespace(broadcast=lambda value: value)
    for batch in range(1, 41):
        clock.inside_step = bool(batch % 2)
        clock.steps += batch % 2 == 0
        progress.is_last_batch = batch % 10 == 0
        restarts._after_batch(cast(Any, SimpleNamespace(fit_loop=loop, strategy=strategy)))
    return saved


@pytest.mark.parametrize(
    ("seconds_a_step", "when", "saved"),
    [
        (1.0, {"every_n_steps": 3}, [6, 12, 18, 24, 32, 38]),
        (1.0, {"every_n_steps": 5}, [12, 22, 32]),  # never at the last batch of an epoch
        # By time: ten steps tell the pace, and no checkpoint comes before it is known.
        (1.0, {"every_s": 4.0}, [32]),
        (0.5, {"every_s": 1.6}, [28, 34]),
    ],
)
def test_it_saves_after_so_many_steps_and_at_no_end_of_an_epoch(
    monkeypatch: pytest.MonkeyPatch, seconds_a_step: float, when: dict[str, Any], saved: list[int]
) -> None:
    assert saving(monkeypatch, seconds_a_step, **when) == saved
