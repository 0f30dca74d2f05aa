"""What a Monitor takes, and what makes two monitored fits repeats of each other."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.strategies import DDPStrategy, SingleDeviceStrategy
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

from scalewise.gpu import NvmlUnavailable
from scalewise.host import usable_cores
from scalewise.records import DeviceInfo
from scalewise.train import Monitor, monitored
from scalewise.train.monitor import describe_fit, ranks_here
from scalewise.train.monitored import config_id


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"warmup_steps": -1}, "^warmup_steps: found -1; allowed: 0 or more"),
     ({"log_every_n_steps": 0}, "^log_every_n_steps: found 0; allowed: 1 or more"),
     ({"interval_s": 0.01}, "^interval_s: found 0.01; allowed: 0.1 or more"),
     ({"tracking": "wandb"}, "^tracking: found 'wandb'; allowed: a list of trackio and wandb"),
     ({"tracking": ["mlflow"]}, "allowed: a list of trackio and wandb")],
)  # fmt: skip
def test_wrong_arguments_are_one_clear_line(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Monitor(**arguments)
    Monitor(warmup_steps=0, log_every_n_steps=1, interval_s=0.1, tracking=["wandb"])


@pytest.mark.parametrize(
    ("devices", "local_rank", "every_s"), [(True, 0, [1.0]), (True, 1, []), (False, 0, [])]
)
def test_the_first_rank_of_a_host_samples_its_devices_once_a_second(
    devices: bool, local_rank: int, every_s: list[float]
) -> None:
    one, trainer = Monitor(devices=devices), Mock(global_step=0, world_size=1, num_nodes=1)
    trainer.local_rank = trainer.global_rank = local_rank
    trainer.is_global_zero = False
    one._recorder, one._records = Mock(), Mock()
    one.on_train_start(trainer, Mock())
    assert [told.args[-1] for told in one._records.sample.call_args_list] == every_s


@pytest.mark.parametrize(("stage", "ends_early"), [("validate", False), ("fit", True)])
def test_what_is_no_fit_has_no_folder(stage: str, ends_early: bool) -> None:
    one = Monitor()
    one.setup(SimpleNamespace(callbacks=[SimpleNamespace(_early_exit=ends_early)]), Mock(), stage)
    with pytest.raises(RuntimeError, match="is known once training has begun"):
        _ = one.sweep_folder


class Small(pl.LightningModule):
    def __init__(self, layer: nn.Module | None = None) -> None:
        super().__init__()
        self.layer = layer or nn.Linear(2, 2)


class Layer(nn.Linear):
    """A layer of the user's own."""


class Other(Small):
    """The same parameters under another class."""


class _Fit:
    """What is asked of a Trainer once a fit is set up."""

    def __init__(self, module: nn.Module, lr: float = 0.1, batch_size: int = 2) -> None:
        self.optimizers = [optim.SGD(module.parameters(), lr=lr)]
        self.train_dataloader = DataLoader(TensorDataset(torch.zeros(8, 2)), batch_size)
        self.strategy: Any = SingleDeviceStrategy(torch.device("cpu"))
        self.precision = "32-true"
        self.max_steps, self.max_epochs = 10, -1
        self.accumulate_grad_batches = 1
        self.gradient_clip_val = None


def _id(
    module: pl.LightningModule, world: int = 1, trackers: tuple[str, ...] = (), **fit: Any
) -> str:
    described: Any = _Fit(module, **fit)
    return config_id(describe_fit(described, module, 5, trackers), world)


def test_model_source_layers_settings_and_devices_tell_fits_apart_and_trackers_do_not() -> None:
    ids = [
        _id(Small()), _id(Other()), _id(Small(Layer(2, 2))), _id(Small(), lr=0.2),
        _id(Small(), world=2), _id(Small(), batch_size=4),
    ]  # fmt: skip
    assert len(set(ids)) == len(ids)
    assert config_id({"a": 1, "seed": 2, "tracking": {}}, 2) == "dbd740df", "written down"
    assert _id(Small(), trackers=("wandb",)) == ids[0]
    assert _id(Small(), lr=0.1 - 1e-16) == ids[0], "as a scheduler computes it"


def test_fits_of_other_seeds_repeat_each_other_and_have_their_seed_on_record() -> None:
    before = torch.random.get_rng_state()
    seeds, ids = [], set()
    for seed in (3, 4, None):
        torch.seed() if seed is None else pl.seed_everything(seed, verbose=False)
        module = Small()
        described: Any = _Fit(module)
        seeds.append(describe_fit(described, module, 5, ()).get("seed"))
        ids.add(_id(module))
    for seed, known in ((2**32 - 1, {"seed": 2**32 - 1}), (2**32, {})):
        torch.manual_seed(seed)
        assert monitored.seed_set() == known
    torch.random.set_rng_state(before)
    assert seeds == [3, 4, None], "nobody has set the last one"
    assert len(ids) == 1


def test_a_host_has_the_ranks_beside_its_own() -> None:
    trainer: Any = SimpleNamespace(world_size=4, num_nodes=2, global_rank=3, local_rank=1)
    assert [*ranks_here(trainer)] == [2, 3]


class _MyOwn(DDPStrategy):
    """A strategy of the user's own, whatever it derives from."""


@pytest.mark.parametrize(
    ("strategy", "precision", "named"),
    [(SingleDeviceStrategy(torch.device("cpu")), "32-true", ("single", "fp32")),
     (SingleDeviceStrategy(torch.device("cuda", 0)), "32-true", ("single", "tf32")),
     (DDPStrategy(parallel_devices=[torch.device("cpu")]), "16-mixed", ("ddp", "fp16-mixed")),
     (_MyOwn(parallel_devices=[torch.device("cpu")]), "bf16-true", ("_MyOwn", "bf16-true"))],
)  # fmt: skip
def test_strategy_and_precision_are_named_as_those_of_cells(
    strategy: Any, precision: str, named: tuple[str, str]
) -> None:
    before, module = torch.get_float32_matmul_precision(), Small()
    fit: Any = _Fit(module)
    fit.strategy, fit.precision, fit.max_steps = strategy, precision, -1
    torch.set_float32_matmul_precision("high")
    config = describe_fit(fit, module, 5, ())
    torch.set_float32_matmul_precision(before)
    assert (config["strategy"]["name"], config["precision"]["name"]) == named
    assert (config["max_steps"], config["max_epochs"]) == (None, None), "no limit"


def test_the_gpus_uuid_is_recorded_also_where_nvml_is_mute(monkeypatch: pytest.MonkeyPatch) -> None:
    class Properties:
        name, uuid, total_memory = "NVIDIA H200", "0a53eb3c-0000-0000-0000-000000000000", 2**37

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    monkeypatch.setattr(monitored, "open_nvml", Mock(side_effect=NvmlUnavailable("no driver")))
    assert monitored.live_device(torch.device("cuda", 1)) == DeviceInfo(
        "cuda", "NVIDIA H200", f"GPU-{Properties.uuid}", None, usable_cores(), 2.0**17
    )
