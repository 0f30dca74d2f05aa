"""Stacks of a rank that hangs: it writes those of all its threads when it gets SIGUSR1."""

from __future__ import annotations

import faulthandler
from typing import Any

from scalewise.rank_environment import STACKS_SIGNAL


def answer_requests() -> None:
    """Write stacks to stderr whenever they are asked for, also while a library call hangs."""
    faulthandler.register(STACKS_SIGNAL)


def keep_answering(trainer: Any) -> None:
    """Let a ``pl.Trainer`` leave the signal alone.

    After each fit and each validation Lightning puts back the handlers of all signals as Python
    knows them. It does not know of faulthandler's: the next request would kill the rank.
    """
    connector = trainer._signal_connector
    current = connector._get_current_signal_handlers

    def others() -> dict[Any, Any]:
        return {number: handler for number, handler in current().items() if number != STACKS_SIGNAL}

    connector._get_current_signal_handlers = others
