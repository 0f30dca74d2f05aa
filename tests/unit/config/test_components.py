"""Every YAML of models, data sets, optimizers, precisions and hardware builds what it names."""

import inspect
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from omegaconf import OmegaConf
from torch import nn

from fakes.requests import composed
from scalewise.config import (
    Component,
    ConfigError,
    HardwareConfig,
    LoaderConfig,
    data_sheet,
    ending_of,
    instantiate,
    load_profiles,
    profile_of,
)
from scalewise.config.components import component_of, load_target
from scalewise.models import TrainableModel
from scalewise.operations import Operation
from scalewise.records import build, to_plain
from scalewise.train.build import build_module

CONF = Path(__file__).parents[3] / "conf"


def options(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def component(key: str, option: str) -> Component:
    group = composed(f"{key}={option}")[key]
    return component_of(key, {k: v for k, v in group.items() if k != "loader"})


PARAMETERS = tomllib.loads(Path(__file__).with_name("parameters.toml").read_text())
OPERATIONS = {"fusion", "voxel"}
NEEDS_A_PATH = {"text_file", "tokens"}


@pytest.mark.parametrize("option", options("model"))
def test_model_builds_with_the_parameters_it_is_known_for(option: str) -> None:
    with torch.device("meta"):
        model = instantiate("model", component("model", option))
    runs_forward = option in OPERATIONS
    assert isinstance(model, Operation if runs_forward else TrainableModel)
    assert runs_forward or sum(p.numel() for p in model.parameters()) == PARAMETERS[option]


@pytest.mark.parametrize("option", options("dataset"))
def test_dataset_builds_and_its_loader_is_valid(option: str) -> None:
    found = component("dataset", option)
    if option in NEEDS_A_PATH:
        with pytest.raises(ConfigError, match=r"^dataset\.path: found null; .*dataset\.path=F"):
            instantiate("dataset", found)
        found = replace(found, arguments={**found.arguments, "path": "given"})
    assert build(LoaderConfig, composed(f"dataset={option}")["dataset"]["loader"])
    data = instantiate("dataset", found)
    own = option == "own_loaders"  # whose samples the model has
    assert own or (callable(data.describe) and {"train", "validation"} <= {*dir(data)})


_APART = {"adamw_amsgrad": {"amsgrad"}, "fineweb_edu": {"path", "corpus"}, "imdb": {"max_tokens"}}
_APART |= dict.fromkeys(("openwebtext", "tinystories"), _APART["fineweb_edu"])
"""What tells an option from others of its class; dropout is none unless a model's option says."""


@pytest.mark.parametrize(
    ("group", "option"), [(g, o) for g in ("model", "dataset", "optimizer") for o in options(g)]
)
def test_what_is_left_out_in_python_is_what_the_option_says(group: str, option: str) -> None:
    found = component(group, option)
    parameters = inspect.signature(load_target(group, found)).parameters
    defaults = {k: to_plain(p.default) for k, p in parameters.items() if p.default is not p.empty}
    differ = {k for k, value in found.arguments.items() if defaults.get(k, value) != value}
    assert differ - {"dropout"} == _APART.get(option, set())


@pytest.mark.parametrize(
    ("model", "dataset", "key", "expected"),
    [
        ("gpt2", "stdlib", "sequence_length", 1024), ("text_small", "ag_news", "max_tokens", 48),
        ("gpt2_tiny", "stdlib", "sequence_length", 64),
        ("gpt2_tiny", "text_file", "sequence_length", 64),
        ("medium", "ag_news", "vocabulary_size", 20_000),
    ],
)  # fmt: skip
def test_data_take_sizes_from_the_model(model: str, dataset: str, key: str, expected: int) -> None:
    assert composed(f"model={model}", f"dataset={dataset}")["dataset"][key] == expected


@pytest.mark.parametrize("option", options("optimizer"))
def test_optimizer_makes_a_step_downhill(option: str) -> None:
    if option == "muon" and not hasattr(torch.optim, "Muon"):
        pytest.skip("muon needs torch 2.9")
    model, found = nn.Linear(4, 4, bias=False), component("optimizer", option)
    optimizer = instantiate("optimizer", found, params=model.named_parameters())
    x = torch.eye(4)
    losses = []
    for _ in range(20):
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("option", options("hardware"))
def test_hardware_profile_is_valid_and_sourced(option: str) -> None:
    config = build(HardwareConfig, composed(f"hardware={option}")["hardware"])
    assert config.name == option and (config.memory_gib is None) == (config.peak is None)
    for figure in filter(None, (config.peak, config.price)):
        assert figure.source and figure.date[:2] == "20"


def test_a_gpu_finds_its_own_profile() -> None:
    profiles = load_profiles(CONF / "hardware")
    expected = {
        "NVIDIA H200": "h200", "NVIDIA H200 NVL": None, "NVIDIA H100 80GB HBM3": "h100",
        "NVIDIA H100 PCIe": "h100_pcie", "NVIDIA H100 NVL": None, "NVIDIA A100-SXM4-80GB": "a100",
        "NVIDIA A100-SXM4-40GB": "a100_sxm_40gb", "NVIDIA A100-PCIE-40GB": "a100_pcie_40gb",
        "NVIDIA A100-PCIE-80GB": "a100_pcie_80gb", "NVIDIA A100 80GB PCIe": "a100_pcie_80gb",
        "NVIDIA A10G": "a10g", "NVIDIA A10": None,
        "NVIDIA GeForce RTX 4070 Ti SUPER": "rtx_4070_ti_super",
        "NVIDIA GeForce RTX 4070 Ti": None,
    }  # fmt: skip
    found = {name: profile_of(name, profiles) for name in expected}
    assert {name: one.name if one else None for name, one in found.items()} == expected
    rates, source = data_sheet(["NVIDIA H200"] * 2, profiles)
    peak = found["NVIDIA H200"].peak
    assert (rates["bf16"], source) == (peak.bf16_tflops, f"{peak.source}, {peak.date}")
    assert data_sheet(["NVIDIA H200", "NVIDIA A10G"], profiles) == ({}, None)


def test_pcie_leaves_the_choice_to_nccl_and_seed000_says_what_it_left_out() -> None:
    assert build(HardwareConfig, composed("hardware=pcie")["hardware"]).nccl_environment() == {}
    seed = build(HardwareConfig, composed("hardware=seed000")["hardware"])
    assert seed.nccl_environment()["NCCL_BUFFSIZE"] == "33554432"
    assert "NCCL_NTHREADS" not in seed.nccl_environment()
    assert seed.memory_cap_gib == 12.0
    left_out = "NCCL_NTHREADS=16 is left out: not a legal value"
    for told in ("NCCL_ALGO=Tree", "NCCL_P2P_DISABLE=1", left_out):
        assert told in "\n".join(seed.warnings())


REFUSED = tomllib.loads(Path(__file__).with_name("refused.toml").read_text())["component"]


@pytest.mark.parametrize(("given", "message"), REFUSED.items())
def test_out_of_range_is_refused(given: str, message: str) -> None:
    target, *words = given.split()
    key = target.partition(".")[0].removesuffix("s")
    arguments: Any = OmegaConf.to_container(OmegaConf.from_dotlist(words))
    needed = {"params": [nn.Parameter(torch.zeros(2))]} if key == "optimizer" else {}
    with pytest.raises(ConfigError) as refused:
        instantiate(key, Component(f"scalewise.{target}", "mine", arguments), **needed)
    assert str(refused.value).startswith(f"{key}.{message}")
    assert ending_of(refused.value, 0).cause == "config"


def test_what_others_refuse_is_no_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hers.py").write_text(
        "from scalewise.config.errors import require\n"
        "def make(): raise ValueError('no data here')\n"
        "def wide(): require('width', 65, False, 'a multiple of 2')\n"
        "class Net(__import__('torch').nn.Module):\n"
        "    forward = loss = print\n"
        "    def metrics(self): raise ValueError('no such task')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as refused:
        instantiate("dataset", Component("hers.make", "own", {}))
    end = ending_of(refused.value, 0)
    assert (end.cause, end.message) == ("exception", "ValueError: no data here")
    assert end.raised_at == f"{tmp_path}/hers.py:2"
    with pytest.raises(ConfigError, match=r"^model\.width: found 65; allowed: a mul") as refused:
        instantiate("model", Component("hers.wide", "own", {}))
    assert ending_of(refused.value, 0).cause == "config", "a class of ours refuses it"
    with pytest.raises(ConfigError, match=r"^optimizer: Invalid learning rate: -1"):
        instantiate("optimizer", Component("torch.optim.SGD", "sgd", {"lr": -1}), params=[])
    with pytest.raises(ConfigError, match=r"^model: no such task$"):
        build_module(Mock(model=Component("hers.Net", "own", {})))


def test_classes_among_arguments_are_built_as_by_hydra(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in lightning-hydra-template: a net, and an optimizer that waits for parameters."""
    monkeypatch.setitem(sys.modules, "mine", SimpleNamespace(make=lambda **given: given))
    inner = {"_target_": "torch.nn.Linear", "_args_": [3, 2], "bias": False}
    arguments = {
        "net": {
            "_target_": "torch.nn.Sequential",
            "_args_": [inner, {"_target_": "torch.nn.ReLU"}],
        },
        "optimizer": {"_target_": "torch.optim.Adam", "_partial_": True, "lr": 0.1},
        "sizes": [{"width": 3}],
        "start": {"_target_": "collections.Counter.fromkeys", "_partial_": True},
    }
    built = instantiate("model", Component("mine.make", "own", arguments))
    assert [p.shape for p in built["net"].parameters()] == [(2, 3)]
    (group,) = built["optimizer"](built["net"].parameters()).param_groups
    assert (group["lr"], built["sizes"]) == (0.1, [{"width": 3}])
    assert built["start"].func.__name__ == "fromkeys"
    whole = component_of("model", {"_target_": "mine.make", "_recursive_": False, "net": inner})
    assert instantiate("model", whole) == {"net": inner}
    absent = Component("mine.make", "own", {"net": {"_target_": "torch.nn.Lineer"}})
    with pytest.raises(ConfigError, match=r"^model\.net\._target_: found 'torch\.nn\.Lineer'; "):
        instantiate("model", absent)
