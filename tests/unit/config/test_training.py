"""Callbacks, schedules and arguments of the Trainer, as they are typed."""

import inspect
from typing import Any

import pytest
from pytorch_lightning import Trainer

from fakes.requests import asked
from scalewise.config import INSTEAD, PASSED, ConfigError, known_mode


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


def test_every_argument_of_lightnings_trainer_is_passed_or_has_a_key() -> None:
    arguments = set(inspect.signature(Trainer.__init__).parameters) - {"self"}
    assert set(PASSED) | set(INSTEAD) == arguments
    assert not set(PASSED) & set(INSTEAD)


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


def test_a_cell_without_any_has_the_id_of_one_that_never_heard_of_them() -> None:
    plain = asked().plain
    for key in ("callbacks", "scheduler", "trainer", "ckpt_path", "test"):
        assert key not in plain
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


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["callbacks.early_stopping.patience=3"], "callbacks.early_stopping: found {'patience': 3}"
         " without a class; allowed: callbacks=early_stopping"),
        (["callbacks=early_stopping", "callbacks.early_stopping.monitor=train/foo"],
         "callbacks.early_stopping.mode: found null, and the name train/foo does not tell"),
        (["callbacks.lr._target_=lightning.pytorch.callbacks.LearningRateMonitor"],
         "callbacks.lr: found lightning.pytorch.callbacks.LearningRateMonitor; allowed: leave it"),
        (["callbacks=model_checkpoint", "validation=epoch",
          "callbacks.model_checkpoint.dirpath=/data"],
         "callbacks.model_checkpoint.dirpath: found '/data'; allowed: a path below callbacks/"),
        (["callbacks=early_stopping", "validation=never"],
         "callbacks.early_stopping.monitor: found val_loss with validation=never, which scores"),
        (["scheduler=plateau"], "scheduler.monitor: found val_loss with validation=end"),
        (["scheduler.T_max=3"], "scheduler: found {'T_max': 3} without a class"),
        (["scheduler=step", "execution=cudagraph"], "scheduler: found a schedule with execution="),
        (["+trainer.val_check_interval=0.5"],
         "trainer.val_check_interval: found 0.5 with validation=end; allowed: validation=epoch"),
        (["trainer.limit_train_batchs=3"],
         "trainer.limit_train_batchs: unknown key (did you mean 'limit_train_batches'?)"),
        (["test=true"], "test: found true with dataset=tabular"),
    ],
)  # fmt: skip
def test_what_would_not_act_is_refused_in_one_line(words: list[str], line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        asked(*words)
    assert str(refused.value).startswith(line)
    assert "\n" not in str(refused.value)
