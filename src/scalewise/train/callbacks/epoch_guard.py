"""A step of the user's that raises StopIteration ends his run, and not his epoch unseen."""

from __future__ import annotations

from typing import Any


def guard_epoch(strategy: Any) -> None:
    """Let a step that raises StopIteration fail: Lightning would take it for the epoch's end.

    That is what ``next()`` on an iterator of the user's own does when it runs dry.
    """
    inner = strategy.training_step

    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return inner(*args, **kwargs)
        except StopIteration as error:
            raise RuntimeError(
                "training_step raised StopIteration, which would have ended its epoch unseen"
            ) from error

    strategy.training_step = guarded
