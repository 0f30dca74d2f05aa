"""Every kind of wrong value is refused in one line; ids hash what determines a result."""

from __future__ import annotations

import copy
import functools
import math
import operator
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import pytest
from omegaconf import OmegaConf

from fakes.requests import asked, composer
from scalewise.config import (
    Component,
    ConfigError,
    as_typed,
    bind,
    build_cell,
    choose_end,
    components,
    config_id,
    keep_known_keys,
    keep_own_arguments,
    open_keys,
    repeat_id,
    resolve,
)
from scalewise.records import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence as OnlyForTypes


class HasLength(Protocol):
    def __len__(self) -> int: ...


@functools.cache
def composed(*overrides: str) -> dict[str, Any]:
    return composer().plain(overrides, 0)


@pytest.mark.parametrize(
    ("overrides", "code"),
    [
        ("batch_size=abc", "int_type"),
        ("batch_size=1.5", "int_type"),
        ("batch_size=0", "greater_than"),
        ("max_repeats=2", "greater_than_equal"),
        ("precision_percent=101", "less_than_equal"),
        ("precision_percent=0", "greater_than"),
        ("repeats=often", "int_type"),
        ("seed=4294967296", "less_than_equal"),
        (f"max_steps={10**13}", "less_than_equal"),
        ("gradient_clip_norm=.nan", "finite_number"),
        ("deterministic=7", "bool_type"),
        ("scaling=storng", "literal_error"),
        ("dataset.loader.num_workers=-1", "greater_than_equal"),
        (f"sweep.hang_timeout_s={'9' * 400}", "float_type"),
        ("sweep.collective_timeout_s=1e300", "less_than_equal"),
        ("sweep.grace_s=9", "less_than_equal"),
        ("sweep.rety=1", "value_error"),
        (f"model.name={'x' * 3000}", "string_too_long"),
        ("tracking.project=a/b", "string_pattern_mismatch"),
        ("strategy=ddp strategy.powersgd_start_step=1", "greater_than_equal"),
        ("strategy=heterogeneous strategy.shares=[.inf]", "finite_number"),
        ("dataset.loader.prefetch_factor=0", "greater_than"),
        ("dataset.loader.workers=2", "value_error"),
        ("hardware.gpus=[]", "literal_error"),
        ("hardware=seed000 hardware.nccl.NCCL_NTHREADS=16", "value_error"),
        ("hardware.memory_cap_gib=0.0", "greater_than"),
        ("hardware.cores_per_device=0", "greater_than"),
        ("hardware=h200 hardware.price.usd_per_hour=-1.0", "greater_than_equal"),
        ("tracking.trackers=[trackio,mlflow]", "literal_error"),
        ("tracking.trackers=[wandb,wandb]", "value_error"),
        ("tracking.wandb_mode='on'", "literal_error"),
        ("tracking.wandbmode=offline", "value_error"),
    ],
)
def test_each_value_has_its_range(overrides: str, code: str) -> None:
    *groups, given = overrides.split()
    key, _, value = given.partition("=")
    plain = copy.deepcopy(composed(*groups))
    *path, last = key.split(".")
    typed: Any = OmegaConf.to_container(OmegaConf.create(f"value: {value}"))
    functools.reduce(operator.getitem, path, plain)[last] = typed["value"]
    with pytest.raises(ConfigError) as caught:
        build_cell(plain)
    assert isinstance(caught.value.__cause__, DataError)
    found = str(caught.value).partition(":")[0].partition("[")[0]
    assert (found, caught.value.__cause__.code) == (key, code)


REFUSED = [
    ("optimizer.lr=inf", "optimizer.lr: found inf; allowed: a finite number"),
    ("optimizer.lr=-1", "optimizer.lr: found -1; allowed: above 0"),
    ("max_steps=300 measure.min_time_s=3",
     "measure.min_time_s: found 3.0 with max_steps=300; allowed: one rule that ends a run"),
    ("max_steps=20 warmup_steps=20", "max_steps: found 20 with warmup_steps=20; allowed: 21"),
    ("strategy.kind=dpp", "strategy.kind: found 'dpp' (did you mean 'ddp'?); allowed: single | "),
    ("strategy.devices=2", "strategy.devices: found 2 with strategy=single; allowed: 1, "),
    ("strategy=ddp strategy.devices=1", "strategy.devices: found 1 with strategy=ddp; allowed: 2"),
    ("strategy=ddp strategy.devices=3",
     "batch_size: found 128 on 3 devices with scaling=strong; allowed: a multiple of 3 "
     "(nearest: 126 or 129)"),
    ("+model.widht=3", "model.widht: unknown key; allowed: features, hidden_widths, targets"),
    ("dataset=stdlib", "dataset: found 'stdlib', which gives tokens; model 'medium' takes table"),
    ("+loader.num_workers=1", "loader: unknown key; the loader's settings are dataset.loader.*"),
    ("hardware.gpus=[0,0]", "hardware.gpus: found [0, 0]; allowed: each GPU once"),
    ("model._target_=Net dataset=tabular",
     "model._target_: found 'Net'; allowed: a class as package.module.Class"),
    ("model._target_=mine.Net dataset.loader.num_workers=2",
     "dataset: found none named beside model._target_=mine.Net, and the default, tabular, is "
     "for models of scalewise; allowed: dataset._target_=package.module.NAME, a class or a "),
    ("devices=0", "devices: found 0; allowed: 1 or more"),
    ("devices=true", "devices: found True; allowed: 1 or more"),
    ("devices=2.5", "devices: found 2.5; allowed: 1 or more"),
    ("devices=2 strategy=single", "devices: found 2 with strategy=single; allowed: 1"),
    ("devices=2 strategy.devices=2", "devices: found 2 with strategy.devices=2; allowed"),
    ("devices=2 strategy.bucket=5", "strategy.bucket: unknown key (did you mean"),
    ("devices=1 strategy.bucket_cap_mb=5", "strategy.bucket_cap_mb: unknown key"),
    ("strategy=fsdp strategy.units=whole", "strategy.units: unknown key"),
    ("callbacks.early_stopping.patience=3",
     "callbacks.early_stopping: found {'patience': 3} without a class; allowed: callbacks=NAME"),
    ("callbacks=early_stopping callbacks.early_stopping.monitor=train/foo",
     "callbacks.early_stopping.mode: found null, and the name train/foo does not tell"),
    ("callbacks.lr._target_=lightning.pytorch.callbacks.LearningRateMonitor",
     "callbacks.lr: found lightning.pytorch.callbacks.LearningRateMonitor; allowed: nothing"),
    ("callbacks=model_checkpoint validation=epoch callbacks.model_checkpoint.dirpath=/data",
     "callbacks.model_checkpoint.dirpath: found '/data'; allowed: a path below callbacks/"),
    ("callbacks=early_stopping validation=never",
     "callbacks.early_stopping.monitor: found val_loss with validation=never, which scores"),
    ("scheduler=plateau", "scheduler.monitor: found val_loss with validation=end"),
    ("scheduler.T_max=3", "scheduler: found {'T_max': 3} without a class"),
    ("scheduler=step scheduler.interval=week", "scheduler.interval: found 'week'; allowed: step"),
    ("scheduler=step execution=cudagraph", "scheduler: found a schedule with execution="),
    ("+trainer.val_check_interval=0.5",
     "trainer.val_check_interval: found 0.5 with validation=end; allowed: validation=epoch"),
    ("trainer.limit_train_batchs=3",
     "trainer.limit_train_batchs: unknown key (did you mean 'limit_train_batches'?)"),
    ("test=true", "test: found true with dataset=tabular"),
    # data parallelism
    ("strategy=ddp strategy.static_graph=true strategy.find_unused_parameters=true",
     "strategy.find_unused_parameters: found true with static_graph=true"),
    ("strategy=local_sgd precision=fp16-mixed", "precision: found fp16-mixed with strategy=local"),
    ("strategy=task_parallel strategy.devices=1", "strategy.devices: found 1 with strategy=task"),
    ("strategy=heterogeneous strategy.shares=[0.6,0.5]", "strategy.shares: found [0.6, 0.5]; al"),
    ("strategy=heterogeneous", "strategy.shares: found []; allowed"),
    ("strategy=heterogeneous strategy.shares=[0.6,0.4] strategy.devices=3",
     "strategy.shares: found 2 with devices=3"),
    ("strategy=heterogeneous strategy.shares=[1.0] strategy.compression=bf16",
     "strategy.compression: found bf16 with strat"),
    ("strategy=heterogeneous strategy.devices=3 strategy.shares=[0.5,0.3,0.2] batch_size=2",
     "batch_size: found 2 on 3 devices"),
    ("strategy=auto strategy.probe_warmup_steps=60",
     "strategy.probe_warmup_steps: found 60 with probe_steps=60; allowed: 0 to 59"),
    ("strategy=auto strategy.candidates.ddp.bucket_cap_mb=0",
     "strategy.candidates.ddp.bucket_cap_mb: found 0; allowed: above 0"),
    # divided models
    ("strategy=fsdp optimizer=adafactor", "optimizer: found adafactor with strategy=fsdp"),
    ("strategy=fsdp precision=fp16-mixed", "precision: found fp16-mixed with strategy=fsdp"),
    ("strategy=pipeline model=lstm dataset=tabular_windows",
     "model: found Recurrent with strategy=pipeline"),
    ("strategy=fsdp model=lstm dataset=tabular_windows", "model: found Recurrent with strategy"),
    ("strategy=pipeline accumulate_grad_batches=2", "accumulate_grad_batches: found 2 with "),
    ("strategy=pipeline strategy.microbatches=3 strategy.devices=4",
     "strategy.microbatches: found 3 with 4 stages; allowed: 4 or more"),
    ("strategy=gpipe strategy.microbatches=3 strategy.devices=4",
     "strategy.microbatches: found 3 with 128 samples"),
    # execution and loaders
    ("+execution.steps_per_batch=2",
     "execution.steps_per_batch: found 2 with execution=eager"),
    ("+execution.compiled=true", "execution.compiled: found true with execution=eager"),
    ("execution=cudagraph execution.compiled=true "
     "+execution.compile_mode=reduce-overhead",
     "execution.compile_mode: found reduce-overhead with execution=cudagraph"),
    ("dataset.loader.num_workers=2 dataset.loader.device_resident=true",
     "dataset.loader.num_workers: found 2 with device_resident=true"),
]  # fmt: skip


@pytest.mark.parametrize(("overrides", "message"), REFUSED)
def test_wrong_values_are_refused_in_one_line(overrides: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}") as caught:
        asked(*overrides.split())
    assert "\n" not in str(caught.value)


def test_a_class_of_ones_own_may_take_infinity() -> None:
    overrides = ("model._target_=mine.Net", "+model.bound=inf", "dataset=tabular")
    cell = build_cell(keep_own_arguments(composed(*overrides), overrides))
    assert cell.model.arguments == {"bound": math.inf}


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ((), 1.0),
        (("max_steps=110", "warmup_steps=10"), 0.1),
        (("max_steps=110", "warmup_steps=10", "monitor.interval_s=2"), 2.0),
        (("max_steps=110", "warmup_steps=10", "monitor.devices=false"), None),
        (("max_steps=5000",), 1.0),
    ],
)
def test_few_steps_are_sampled_more_often(typed: tuple[str, ...], expected: float | None) -> None:
    assert build_cell(composed(*typed)).sample_every_s == expected


def test_what_a_setting_falls_back_on_is_what_is_shipped() -> None:
    cell = build_cell(composed("tracking.project=scalewise"))
    for shipped in (cell.loader, cell.monitor, cell.sweep, cell.profile, cell.measure,
                    cell.rehearse, cell.tracking):  # fmt: skip
        assert shipped == type(shipped)()


def test_an_id_is_of_what_determines_the_result() -> None:
    plain = composed()
    same = composed("sweep.timeout_s=5", "tracking=none", "monitor.interval_s=2", "repeats=3")
    assert config_id(plain) == config_id(same)
    for change in ("seed=1", "batch_size=64", "model.dropout=0.1", "precision=tf32"):
        assert config_id(composed(change)) != config_id(plain)
    assert config_id(dict(reversed(plain.items()))) == config_id(plain)
    ids = [repeat_id("d364ec9be012", repeat) for repeat in (0, 1)]
    assert ids == ["8d77225e818a", "cac96da71705"]
    # Written down, because a resumed sweep finds its cells by it.
    assert config_id({"a": 1, "b": [1, 2.5, None]}) == "d364ec9be012"


def test_a_class_of_ones_own_gets_only_what_was_typed_for_it() -> None:
    typed = ["model._target_=mine.Net", "model.width=8", "seed=1"]
    plain = composed("++model._target_=mine.Net", "+model.width=8", "seed=1")
    for names_data in ("dataset.samples=400", "sweep.resume=begun"):
        kept = keep_own_arguments(plain, [*typed, names_data])
        assert kept["model"] == {"_target_": "mine.Net", "width": 8}
    assert kept["optimizer"] == plain["optimizer"]
    assert build_cell(kept).model == Component("mine.Net", "Net", {"width": 8})


def test_the_data_that_nobody_named_are_those_of_the_shipped_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.yaml").write_text("defaults: [_self_, {dataset: other}]")
    monkeypatch.setattr(components, "conf_dir", lambda: tmp_path)
    plain = {"model": {"_target_": "mine.Net"}, "dataset": {"name": "other"}}
    with pytest.raises(ConfigError, match="and the default, other, is for models of scalewise"):
        keep_own_arguments(plain, ["model._target_=mine.Net"])


class Typed:
    """Stands for a user's class; one annotation is known to type checkers alone."""

    def __init__(self, width: int, names: OnlyForTypes[str] = ()) -> None: ...


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


def test_a_class_that_has_no_name_is_called_as_its_file_is() -> None:
    groups = {"model": {"_target_": "mine.Net"}, "dataset": {"_target_": "mine.A", "name": "told"}}
    plain = resolve(OmegaConf.create(groups), {"model": "nets/wide", "dataset": "other"})
    assert [plain[group]["name"] for group in groups] == ["wide", "told"]


@pytest.mark.parametrize(
    ("typed", "written", "end"),
    [
        ([], (), "time"),
        (["max_steps=7"], (), "steps"),
        (["measure.min_time_s=3"], ("max_steps",), "time"),
        ([], ("max_steps",), "steps"),
        ([], ("max_steps", "measure.min_time_s"), "steps"),
        (["max_steps=null"], (), "time"),
        (["max_steps=7", "measure.min_time_s=3"], (), "both"),
    ],
)
def test_what_is_typed_ends_a_run_before_what_is_written(
    typed: list[str], written: tuple[str, ...], end: str
) -> None:
    steps = None if "max_steps=null" in typed else 7
    plain = {"max_steps": steps, "max_epochs": None, "measure": {"min_time_s": 3.0}}
    chosen = choose_end(plain, typed, written)
    time_s = chosen["measure"]["min_time_s"]
    expected = {"time": (None, 3.0), "steps": (7, None), "both": (7, 3.0)}
    assert (chosen["max_steps"], time_s) == expected[end]


# ``devices=2``, and keys that some strategies of a sweep do not know.
@pytest.mark.parametrize(
    ("typed", "same"),
    [
        (("devices=1",), ("strategy=single",)),
        (("devices=1", "strategy=local_sgd"), ("strategy=single",)),
        (("devices=2",), ("strategy=ddp", "strategy.devices=2")),
        (("devices=auto",), ("strategy=ddp",)),
        (
            ("devices=2", "strategy.bucket_cap_mb=50"),
            ("strategy=ddp", "strategy.devices=2", "strategy.bucket_cap_mb=50"),
        ),
        (("devices=2", "strategy=local_sgd"), ("strategy=local_sgd", "strategy.devices=2")),
    ],
)
def test_devices_are_a_strategy_in_other_words(
    typed: tuple[str, ...], same: tuple[str, ...]
) -> None:
    assert asked(*typed).config_id == asked(*same).config_id


def test_a_key_of_one_strategy_is_left_out_of_a_sweeps_others() -> None:
    typed = {"devices": 2, "bucket_cap_mb": 50, "nonsense": 1}
    single, ddp = ({"strategy": {"kind": kind, **typed}} for kind in ("single", "ddp"))
    assert keep_known_keys([single, ddp]) == [
        {"strategy": {"kind": "single", "devices": 1}},  # ddp's refusal lists more keys
        ddp,
    ]
    assert keep_known_keys([single, single]) == [single, single]


def test_arguments_of_a_class_of_ones_own_need_no_plus() -> None:
    typed = ["model._target_=mine.Net", "model.width=8", "optimizer.lr=0.1", "strategy.x=1"]
    opened = open_keys(typed)
    assert [text.startswith("++") for text in opened] == [True, True, False, True]
    assert as_typed(opened) == typed
    assert composer().plain(typed[:2], 0)["model"]["width"] == 8
    swept = ["model=gru,lstm", "model.hidden=8", "dataset=[a,b]", "dataset.rows=1"]
    assert open_keys(swept) == [swept[0], f"++{swept[1]}", *swept[2:]]
