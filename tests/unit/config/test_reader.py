"""Every kind of wrong value is refused in one line; ids hash what determines a result."""

from __future__ import annotations

import functools
import math
import operator
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import pytest
from omegaconf import OmegaConf

from fakes.requests import asked, composed
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


REFUSED = tomllib.loads(Path(__file__).with_name("refused.toml").read_text())
LONG = {
    f"sweep.hang_timeout_s={'9' * 400}": "float_type",
    f"model.name={'x' * 3000}": "string_too_long",
}


def with_value(groups: list[str], key: str, value: Any) -> dict[str, Any]:
    """What is composed of these groups, with another value of one key."""
    plain = composed(*groups)
    *path, last = key.split(".")
    functools.reduce(operator.getitem, path, plain)[last] = value
    return plain


@pytest.mark.parametrize(("overrides", "code"), [*REFUSED["code"].items(), *LONG.items()])
def test_each_value_has_its_kind_and_its_range(overrides: str, code: str) -> None:
    *groups, given = overrides.split()
    key, _, value = given.partition("=")
    typed: Any = OmegaConf.to_container(OmegaConf.create(f"value: {value}"))
    with pytest.raises(ConfigError) as caught:
        build_cell(with_value(groups, key, typed["value"]))
    assert isinstance(caught.value.__cause__, DataError)
    found = str(caught.value).partition(":")[0].partition("[")[0]
    assert (found, caught.value.__cause__.code) == (key, code)


@pytest.mark.parametrize(("setting", "ends"), REFUSED["range"].items())
def test_the_ends_of_a_range_are_in_it_and_nothing_beyond(setting: str, ends: list[float]) -> None:
    *groups, key = setting.split()
    beyond = 1 if isinstance(ends[0], int) else 1e-3
    for value in ends:
        build_cell(with_value(groups, key, value))
    for value in (ends[0] - beyond, *(most + beyond for most in ends[1:])):
        with pytest.raises(ConfigError, match=f"^{key}: found {value}"):
            build_cell(with_value(groups, key, value))


@pytest.mark.parametrize(("overrides", "message"), REFUSED["said"].items())
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
        ((), 1.0), (("max_steps=512", "warmup_steps=12"), 0.1),
        (("max_steps=110", "warmup_steps=10", "monitor.interval_s=2"), 2.0),
        (("max_steps=110", "warmup_steps=10", "monitor.devices=false"), None),
        (("max_steps=513", "warmup_steps=12"), 1.0),
    ],
)  # fmt: skip
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
    plain["dataset"]["name"] = "mine"
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
        ([], (), "time"), (["max_steps=7"], (), "steps"),
        (["measure.min_time_s=3"], ("max_steps",), "time"), ([], ("max_steps",), "steps"),
        ([], ("max_steps", "measure.min_time_s"), "steps"), (["max_steps=null"], (), "time"),
        (["max_steps=7", "measure.min_time_s=3"], (), "both"),
    ],
)  # fmt: skip
def test_what_is_typed_ends_a_run_before_what_is_written(
    typed: list[str], written: tuple[str, ...], end: str
) -> None:
    steps = None if "max_steps=null" in typed else 7
    plain = {"max_steps": steps, "max_epochs": None, "measure": {"min_time_s": 3.0}}
    chosen = choose_end(plain, typed, written)
    expected = {"time": (None, 3.0), "steps": (7, None), "both": (7, 3.0)}
    assert (chosen["max_steps"], chosen["measure"]["min_time_s"]) == expected[end]


# ``devices=2``, and keys that some strategies of a sweep do not know.
@pytest.mark.parametrize(
    ("typed", "same"),
    [
        ("devices=1", "strategy=single"),
        ("devices=1 strategy=local_sgd", "strategy=single"),
        ("devices=2", "strategy=ddp strategy.devices=2"),
        ("devices=auto", "strategy=ddp"),
        ("devices=2 strategy.bucket_cap_mb=50",
         "strategy=ddp strategy.devices=2 strategy.bucket_cap_mb=50"),
        ("devices=2 strategy=local_sgd", "strategy=local_sgd strategy.devices=2"),
    ],
)  # fmt: skip
def test_devices_are_a_strategy_renamed(typed: str, same: str) -> None:
    assert asked(*typed.split()).config_id == asked(*same.split()).config_id


def test_a_key_of_one_strategy_is_left_out_of_a_sweeps_others() -> None:
    typed = {"devices": 2, "bucket_cap_mb": 50, "nonsense": 1}
    single, ddp = ({"strategy": {"kind": kind, **typed}} for kind in ("single", "ddp"))
    known = {"strategy": {"kind": "single", "devices": 1}}
    assert keep_known_keys([single, ddp]) == [known, ddp], "ddp's refusal lists more keys"
    assert keep_known_keys([single, single]) == [single, single]


def test_arguments_of_a_class_of_ones_own_need_no_plus() -> None:
    typed = ["model._target_=mine.Net", "model.width=8", "optimizer.lr=0.1", "strategy.x=1"]
    opened = open_keys(typed)
    assert [text.startswith("++") for text in opened] == [True, True, False, True]
    assert (as_typed(opened), composed(*typed[:2])["model"]["width"]) == (typed, 8)
    swept = ["model=gru,lstm", "model.hidden=8", "dataset=[a,b]", "dataset.rows=1"]
    assert open_keys(swept) == [swept[0], f"++{swept[1]}", *swept[2:]]
