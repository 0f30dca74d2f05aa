"""Every kind of wrong value is refused in one line; ids hash what determines a result."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import pytest
import torch
from hydra import compose, initialize_config_dir

from scalewise.config import (
    Component,
    ConfigError,
    bind,
    build_cell,
    check_module,
    conf_dir,
    config_id,
    instantiate,
    keep_own_arguments,
    load_target,
    repeat_id,
    resolve,
    without_absent_groups,
)
from scalewise.config.components import component_of
from scalewise.records import DataError
from scalewise.sweep.plan import request

if TYPE_CHECKING:
    from collections.abc import Sequence as OnlyForTypes


class HasLength(Protocol):
    def __len__(self) -> int: ...


CONF = conf_dir()


def composed(*overrides: str) -> dict[str, Any]:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return resolve(compose(config_name="config", overrides=list(overrides)))


@pytest.mark.parametrize(
    ("overrides", "key", "code"),
    [
        ("batch_size=abc", "batch_size", "int_type"),
        ("batch_size=1.5", "batch_size", "int_type"),
        ("batch_size=0", "batch_size", "greater_than"),
        ("repeats=0", "repeats", "greater_than"),
        ("max_repeats=2", "max_repeats", "greater_than_equal"),
        ("precision_percent=0", "precision_percent", "greater_than"),
        ("precision_percent=101", "precision_percent", "less_than_equal"),
        ("warmup_steps=-1", "warmup_steps", "greater_than_equal"),
        ("log_every_n_steps=0", "log_every_n_steps", "greater_than"),
        ("accumulate_grad_batches=0", "accumulate_grad_batches", "greater_than"),
        ("seed=-1", "seed", "greater_than_equal"),
        ("seed=4294967296", "seed", "less_than_equal"),
        (f"max_steps={10**13}", "max_steps", "less_than_equal"),
        (f"max_epochs={10**13}", "max_epochs", "less_than_equal"),
        ("max_epochs=0", "max_epochs", "greater_than_equal"),
        ("gradient_clip_norm=0", "gradient_clip_norm", "greater_than"),
        ("gradient_clip_norm=nan", "gradient_clip_norm", "finite_number"),
        ("deterministic=7", "deterministic", "bool_type"),
        ("scaling=storng", "scaling", "literal_error"),
        ("validation=often", "validation", "literal_error"),
        ("checkpoint.every_s=inf", "checkpoint.every_s", "finite_number"),
        ("checkpoint.every_s=0", "checkpoint.every_s", "greater_than"),
        ("checkpoint.every_n_steps=0", "checkpoint.every_n_steps", "greater_than"),
        ("dataset.loader.num_workers=-1", "dataset.loader.num_workers", "greater_than_equal"),
        ("dataset.loader.num_workers=inf", "dataset.loader.num_workers", "int_type"),
        ("dataset.loader.device_prefetch=65", "dataset.loader.device_prefetch", "less_than_equal"),
        ("monitor.interval_s=0.01", "monitor.interval_s", "greater_than_equal"),
        ("profile.steps=0", "profile.steps", "greater_than"),
        ("sweep.timeout_s=0", "sweep.timeout_s", "greater_than"),
        ("sweep.timeout_s=-inf", "sweep.timeout_s", "finite_number"),
        ("sweep.hang_timeout_s=0", "sweep.hang_timeout_s", "greater_than"),
        (f"sweep.hang_timeout_s={'9' * 400}", "sweep.hang_timeout_s", "float_type"),
        ("sweep.collective_timeout_s=1e300", "sweep.collective_timeout_s", "less_than_equal"),
        ("sweep.grace_s=9", "sweep.grace_s", "less_than_equal"),
        ("sweep.retries=11", "sweep.retries", "less_than_equal"),
        ("sweep.extend=-1", "sweep.extend", "greater_than_equal"),
        ("sweep.max_gpu_hours=0", "sweep.max_gpu_hours", "greater_than"),
        ("+sweep.rety=1", "sweep.rety", "value_error"),
        ("strategy=ddp strategy.bucket_cap_mb=0", "strategy.bucket_cap_mb", "greater_than"),
        ("strategy=heterogeneous strategy.shares=[inf]", "strategy.shares[0]", "finite_number"),
        (f"model.name={'x' * 3000}", "model.name", "string_too_long"),
        (f"strategy.name={'x' * 3000}", "strategy.name", "string_too_long"),
        ("tracking.wandb_mode=maybe", "tracking.wandb_mode", "literal_error"),
        (
            "execution=cudagraph execution.steps_per_batch=0",
            "execution.steps_per_batch",
            "greater_than_equal",
        ),
        ("pruning=magnitude pruning.sparsity=1.0", "pruning.sparsity", "less_than"),
        ("pruning=magnitude pruning.every_n_steps=0", "pruning.every_n_steps", "greater_than"),
        ("strategy=local_sgd strategy.period=0", "strategy.period", "greater_than"),
        ("strategy=pipeline strategy.microbatches=0", "strategy.microbatches", "greater_than"),
        ("strategy=ddp strategy.powersgd_rank=0", "strategy.powersgd_rank", "greater_than"),
        (
            "strategy=ddp strategy.powersgd_start_step=1",
            "strategy.powersgd_start_step",
            "greater_than_equal",
        ),
        ("strategy=ddp strategy.compression=fp8", "strategy.compression", "literal_error"),
        ("tracking.system_interval_s=0", "tracking.system_interval_s", "greater_than_equal"),
    ],
)
def test_each_value_has_its_range(overrides: str, key: str, code: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_cell(composed(*overrides.split()))
    assert isinstance(caught.value.__cause__, DataError)
    assert (str(caught.value).partition(":")[0], caught.value.__cause__.code) == (key, code)


REFUSED = [
    ("optimizer.lr=inf", "optimizer.lr: found inf; allowed: a finite number"),
    ("optimizer.betas=[0.9,nan]", "optimizer.betas[1]: found nan; allowed: a finite number"),
    ("optimizer.lr=-1", "optimizer.lr: found -1; allowed: above 0"),
    ("optimizer.lr=fast", "optimizer.lr: found 'fast'; allowed: a number"),
    ("max_steps=null", "max_steps: found null, and max_epochs is null too"),
    ("max_steps=20 warmup_steps=20", "max_steps: found 20 with warmup_steps=20; allowed: 21"),
    ("strategy.kind=dpp", "strategy.kind: found 'dpp' (did you mean 'ddp'?); allowed: single | "),
    ("strategy.devices=2", "strategy.devices: found 2 with strategy=single; allowed: 1, "),
    ("strategy=ddp strategy.devices=1", "strategy.devices: found 1 with strategy=ddp; allowed: 2"),
    (
        "strategy=ddp strategy.devices=3",
        "batch_size: found 128 on 3 devices with scaling=strong; allowed: a multiple of 3 "
        "(nearest: 126 or 129)",
    ),
    (
        "strategy=ddp strategy.devices=4 batch_size=2",
        "batch_size: found 2 on 4 devices with scaling=strong; allowed: a multiple of 4 "
        "(nearest: 4)",
    ),
    ("pruning=adamw_state optimizer=sgd", "pruning: found adamw_state with sgd, which keeps no"),
    ("model.dropout=1", "model.dropout: found 1; allowed: 0 <= dropout < 1"),
    ("model.hidden_widths=64", "model.hidden_widths: found 64; allowed: a list"),
    ("+model.widht=3", "model.widht: unknown key; allowed: features, hidden_widths, targets"),
    ("~model.features", "model.features: missing; scalewise.models.mlp.Mlp needs it"),
    ("dataset=stdlib", "dataset: found 'stdlib', which gives tokens; model 'medium' takes table"),
    ("+loader.num_workers=1", "loader: unknown key; the loader's settings are dataset.loader.*"),
    ("hardware.gpus=[0,0]", "hardware.gpus: found [0, 0]; allowed: each GPU once"),
    ("model._target_=Net", "model._target_: found 'Net'; allowed: a class as package.module.Class"),
    ("model._target_=nowhere.Net", "model._target_: found 'nowhere.Net', but there is no module"),
    (
        "model._target_=scalewise.models.mlp.Mpl",
        "model._target_: found 'scalewise.models.mlp.Mpl'; scalewise.models.mlp has no 'Mpl' "
        "(did you mean 'Mlp'?)",
    ),
]


@pytest.mark.parametrize(("overrides", "message"), REFUSED)
def test_wrong_values_are_refused_in_one_line(overrides: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}") as caught:
        request(overrides.split(), composed(*overrides.split()))
    assert "\n" not in str(caught.value)


def test_every_optimizer_that_is_allowed_keeps_a_second_moment_and_no_other() -> None:
    for path in (CONF / "optimizer").glob("*.yaml"):
        plain = composed("pruning=adamw_state", f"optimizer={path.stem}")
        weight = torch.nn.Parameter(torch.ones(2, 2))
        name = ("weight", weight)
        built = instantiate(
            "optimizer",
            component_of("optimizer", plain["optimizer"]),
            params=[name],
            device_kind="cpu",
        )
        weight.grad = torch.ones(2, 2)
        built.step()
        if "exp_avg_sq" in built.state.get(weight, {}):
            build_cell(plain)
        else:
            with pytest.raises(ConfigError, match=r"^pruning: found adamw_state"):
                build_cell(plain)


def test_a_class_of_ones_own_may_take_infinity() -> None:
    overrides = ("model._target_=mine.Net", "+model.bound=inf")
    cell = build_cell(keep_own_arguments(composed(*overrides), overrides))
    assert cell.model.arguments == {"bound": math.inf}


def test_a_group_that_is_gone_is_named() -> None:
    plain = {**composed(), "model": None}
    with pytest.raises(ConfigError, match=r"^model: found None; allowed: an option of the group"):
        build_cell(plain)


def test_a_missing_value_is_named() -> None:
    with pytest.raises(ConfigError, match=r"max_steps"):
        composed("max_steps=???")


@pytest.mark.parametrize(
    ("scaling", "devices", "per_device", "together"),
    [("strong", 1, 128, 128), ("strong", 4, 32, 128), ("weak", 1, 128, 128), ("weak", 4, 128, 512)],
)
def test_strong_scaling_keeps_the_global_batch_and_weak_the_devices(
    scaling: str, devices: int, per_device: int, together: int
) -> None:
    cell = build_cell(composed(f"scaling={scaling}"))
    assert cell.per_device_batch_size(devices) == per_device
    assert cell.global_batch_size(devices) == together


def test_an_id_is_of_what_determines_the_result() -> None:
    plain = composed()
    same = composed("sweep.timeout_s=5", "tracking=none", "monitor.interval_s=2", "repeats=3")
    assert config_id(plain) == config_id(same)
    for change in ("seed=1", "batch_size=64", "model.dropout=0.1", "precision=tf32"):
        assert config_id(composed(change)) != config_id(plain)
    assert config_id(dict(reversed(plain.items()))) == config_id(plain)
    assert repeat_id("d364ec9be012", 0) != repeat_id("d364ec9be012", 1)
    # Written down, because a resumed sweep finds its cells by it.
    assert config_id({"a": 1, "b": [1, 2.5, None]}) == "d364ec9be012"


@pytest.mark.parametrize("saving", [(), ("checkpoint.every_n_steps=10", "checkpoint.keep=true")])
def test_whom_a_sweep_trusts_is_in_no_id_and_by_default_in_no_record(
    saving: tuple[str, ...],
) -> None:
    plain = without_absent_groups(composed(*saving))
    trusting = without_absent_groups(composed(*saving, "checkpoint.trust=true"))
    assert config_id(plain) == config_id(trusting)
    assert trusting["checkpoint"]["trust"] is True
    assert "trust" not in plain.get("checkpoint", {})
    if saving:
        assert config_id(plain) != config_id(without_absent_groups(composed()))


def test_a_class_of_ones_own_gets_only_what_was_typed_for_it() -> None:
    typed = ["model._target_=mine.Net", "model.width=8", "seed=1"]
    plain = composed("++model._target_=mine.Net", "+model.width=8", "seed=1")
    kept = keep_own_arguments(plain, typed)
    assert kept["model"] == {"_target_": "mine.Net", "width": 8}
    assert kept["optimizer"] == plain["optimizer"]
    assert build_cell(kept).model == Component("mine.Net", "Net", {"width": 8})


def test_the_loader_stays_beside_a_dataset_of_ones_own() -> None:
    plain = composed("dataset._target_=mine.Data", "dataset.loader.num_workers=1")
    kept = keep_own_arguments(plain, ["dataset._target_=mine.Data", "dataset.loader.num_workers=1"])
    cell = build_cell(kept)
    assert cell.loader.num_workers == 1
    assert cell.dataset == Component("mine.Data", "Data", {})


class Typed:
    """Stands for a user's class; one annotation is known to type checkers alone."""

    def __init__(
        self,
        width: int,
        names: OnlyForTypes[str] = (),
    ) -> None:
        if width > 100:
            raise ValueError(f"width: found {width}; allowed: at most 100")


class Hinted:
    def __init__(self, one: HasLength, two: Annotated[int, []], three: float) -> None: ...


@pytest.mark.parametrize(
    ("target", "arguments", "message"),
    [
        (Typed, {"width": 3}, None),
        (Typed, {}, "model.width: missing; mine.Net needs it"),
        (Hinted, {"one": 1, "two": 2, "three": 3}, None),
        (Hinted, {"one": 1, "two": 2, "three": "x"}, "model.three: found 'x'"),
    ],
)
def test_annotations_that_only_a_type_checker_knows_are_no_obstacle(
    target: type, arguments: dict[str, Any], message: str | None
) -> None:
    component = Component("mine.Net", "Net", arguments)
    if message is None:
        bind("model", component, target)
        return
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        bind("model", component, target)


def test_what_a_constructor_refuses_is_prefixed_with_its_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "mine", SimpleNamespace(Typed=Typed))
    with pytest.raises(ConfigError, match=r"^model\.width: found 101; allowed: at most 100$"):
        instantiate("model", Component("mine.Typed", "Typed", {"width": 101}))


def test_a_users_module_is_looked_for_but_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "explosive.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    check_module("model", Component("explosive.Net", "Net", {}))
    with pytest.raises(RuntimeError, match="imported"):
        load_target("model", Component("explosive.Net", "Net", {}))
