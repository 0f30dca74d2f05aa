"""Callbacks, schedules and arguments of the Trainer, as they are typed."""

import inspect
import re
from typing import Any

import pytest
from pytorch_lightning import Trainer

from fakes.requests import asked
from scalewise.config import INSTEAD, PASSED, ConfigError, ProfileConfig, known_mode


@pytest.mark.parametrize(
    ("metric", "mode"),
    [
        ("val/acc", "max"), ("val_loss", "min"), ("val/acc_best", "max"), ("Test-F1", "max"),
        ("global_samples_per_s", "max"), ("val/top5 accuracy", "max"), ("acc_loss", "min"),
        ("lossless", None), ("val/foo", None), ("", None),
    ],
)  # fmt: skip
def test_which_value_of_a_metric_is_the_better_one(metric: str, mode: str | None) -> None:
    assert known_mode(metric) == mode


def test_a_profiled_cell_ends_after_its_window_and_the_blocks_of_reductions() -> None:
    off, on = ProfileConfig(), ProfileConfig(window=True, steps=7)
    cases = [(off, 99, True), (on, None, False), (on, None, True), (on, 90, True), (on, 80, True)]
    assert [one.last_step(most, 20, known) for one, most, known in cases] == [99, 27, 87, 87, 80]


def test_every_argument_of_lightnings_trainer_is_passed_or_has_a_key() -> None:
    arguments = set(inspect.signature(Trainer.__init__).parameters) - {"self"}
    assert set(PASSED) | set(INSTEAD) == arguments
    assert not set(PASSED) & set(INSTEAD)


NO_KEY = re.compile(r"nothing|hydra|\w+=NAME")


@pytest.mark.parametrize(
    "name", [n for n in (*INSTEAD, *PASSED) if not NO_KEY.match(INSTEAD.get(n, ""))]
)
def test_what_is_offered_for_a_misspelt_key_is_accepted(name: str) -> None:
    with pytest.raises(ConfigError) as refused:
        asked(f"+trainer.{name[:-1]}_=1")
    near = re.search(r"did you mean '(.+?)'\?\); ", str(refused.value))
    key = re.search(r"allowed: ([\w.=]+)", str(refused.value))
    words = f"+trainer.{near[1]}" if near else key[1]  # type: ignore[index]
    try:
        asked(words if "=" in words else f"{words}=1")
    except ConfigError as error:  # of its value, but no longer of the key
        assert not re.search("unknown|a cell decides", str(error))


def callbacks(*words: str) -> dict[str, Any]:
    return {n: dict(c.arguments) for n, c in asked(*words).cell.callbacks.items()}


def test_several_callbacks_act_in_the_order_typed_with_the_mode_of_their_metric() -> None:
    found = callbacks(
        "callbacks=[model_checkpoint,early_stopping]", "validation=epoch",
        "callbacks.early_stopping.monitor=val/acc", "callbacks.early_stopping.patience=7",
        "callbacks.mine._target_=fakes.own_code.Net", "callbacks.mine.level=3",
    )  # fmt: skip
    assert list(found) == ["model_checkpoint", "early_stopping", "mine"]
    assert found["model_checkpoint"]["mode"] == "min"
    stopping = found["early_stopping"]
    assert (stopping["monitor"], stopping["mode"], stopping["patience"]) == ("val/acc", "max", 7)
    assert found["mine"] == {"level": 3}
    every = "callbacks.model_checkpoint.monitor=null"
    assert "mode" not in callbacks("callbacks=model_checkpoint", every)["model_checkpoint"]


def test_a_cell_without_any_has_the_id_of_one_that_never_heard_of_them() -> None:
    assert not {"callbacks", "scheduler", "trainer", "ckpt_path", "test"} & asked().plain.keys()
    assert asked("callbacks=none", "scheduler=none", "test=false").config_id == asked().config_id


def test_a_schedule_knows_the_whole_run_and_its_metric() -> None:
    cosine = asked("scheduler=cosine", "max_epochs=3").cell.scheduler
    assert (cosine.interval, cosine.of_whole_run) == ("step", "T_max")
    assert cosine.component_for(40).arguments["T_max"] == 40
    plateau = asked(
        "scheduler=plateau", "scheduler.monitor=val/acc", "validation=epoch", "scheduler.patience=2"
    ).cell.scheduler
    assert (plateau.monitor, plateau.component.arguments["mode"]) == ("val/acc", "max")
    assert "monitor" not in plateau.component.arguments
