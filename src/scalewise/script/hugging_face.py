"""The Trainer of transformers, which calls its callbacks with what it has made."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from scalewise.host import say
from scalewise.script.entry import active

if TYPE_CHECKING:
    from scalewise.script.monitored import ScriptMonitor

_HIDDEN = "any loss that is no number"
_FILTER = (
    "logging_nan_inf_filter hides it from the Trainer's log, and waits for the device at each "
    "step; TrainingArguments(logging_nan_inf_filter=False) does neither"
)


class _Callback(TrainerCallback):  # type: ignore[misc] # where transformers is not there
    def __init__(self, monitor: ScriptMonitor) -> None:
        self._monitor = monitor

    def on_train_begin(
        self, args: Any, state: Any, control: Any, *, optimizer: Any, model: Any, **_: Any
    ) -> None:
        self._monitor.begin([optimizer], [model])
        if args.logging_nan_inf_filter and state.is_world_process_zero:
            say(f"scalewise: {_HIDDEN}: {_FILTER}")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        recorder = active()  # under `scalewise run` from the second step on
        if args.logging_nan_inf_filter and recorder is not None:
            recorder.note(_HIDDEN, _FILTER)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if logs and "train_runtime" not in logs:  # its own summary, at the end
            for name in logs.keys() - {"epoch"}:
                self._monitor.log(name, logs[name])


def attach(trainer: Any, monitor: ScriptMonitor) -> None:
    """Record every ``trainer.train()``, from its first step to its end, however that comes."""
    trainer.add_callback(_Callback(monitor))
    inner = trainer.train

    @functools.wraps(inner)
    def train(*args: Any, **kwargs: Any) -> Any:
        with monitor:
            return inner(*args, **kwargs)

    trainer.train = train
