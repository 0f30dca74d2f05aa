"""No checkpoint runs code when a rank starts from it, unless the user tells torch to trust it."""

import collections
import os
import pickle
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.demos.boring_classes import BoringModel

from fakes.small_fit import small_trainer
from scalewise.train.experiment import PLAIN, refusal

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


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "two_steps.ckpt"


def save(path: Path, option: Any = None) -> None:
    """A checkpoint of a module that had this hyper-parameter."""
    trains = small_trainer(max_steps=2)
    trains.fit(Module(option))
    trains.save_checkpoint(path)


def go_on(path: Path, module: Module | None = None) -> pl.Trainer:
    """As a rank does it."""
    torch.serialization.add_safe_globals(PLAIN)
    again = small_trainer(max_steps=4)
    again.fit(module or Module(), ckpt_path=str(path))
    return again


def refused_by(path: Path) -> str:
    with pytest.raises(pickle.UnpicklingError) as caught:
        go_on(path)
    return str(refusal(caught.value, "a.ckpt"))


@pytest.mark.parametrize("option", [[1, {"path": Path("/x/y")}], collections.defaultdict(list)])
def test_plain_hyperparameters_are_gone_on_from(path: Path, option: Any) -> None:
    save(path, option)
    assert go_on(path, Module(option)).global_step == 4
    assert torch.load(path, weights_only=True)["hyper_parameters"]["option"] == option


def test_a_malicious_pickle_runs_only_where_torch_was_told_to_trust(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = path.with_name("ran")
    save(path)
    torch.save({**torch.load(path, weights_only=True), "hyper_parameters": Malice(ran)}, path)
    refused = refused_by(path)
    assert "posix.mkdir" in refused
    assert not ran.exists()
    way = next(word for word in refused.split() if word.startswith("TORCH_"))
    monkeypatch.setenv(*way.split("="))
    go_on(path)
    assert ran.exists()


@pytest.mark.parametrize(
    ("option", "named"),
    # torch allows the second class, and refuses to put anything into it.
    [(Namespace(a=1), "argparse.Namespace"),
     pytest.param(
         collections.defaultdict(list, a=[1]), "collections.defaultdict",
         marks=pytest.mark.skipif(torch.__version__.startswith("2.6."), reason="is loaded"))],
)  # fmt: skip
def test_another_class_is_named_in_one_line(path: Path, option: Any, named: str) -> None:
    save(path, option)
    refused = refused_by(path)
    assert named in refused and "\n" not in refused
