"""What a monitored fit says on the terminal: where its records are, and what they are worth."""

from __future__ import annotations

import logging
from pathlib import Path

from pytorch_lightning.utilities import rank_zero_info

_FEW_STEPS = 10
"""Fewer timed steps say little of how long one takes."""
_log = logging.getLogger(__name__)


def say_begin(folder: Path, warmup_steps: int, planned: int | None) -> None:
    """Records go to ``folder``; warns where too few of the ``planned`` steps will be timed."""
    rank_zero_info(
        f"scalewise: records go to {_shown(folder)}; the first "
        f"{warmup_steps} steps are warm-up and not timed"
    )
    enough = warmup_steps + _FEW_STEPS
    if planned is not None and planned < enough:
        fewer = _shorter_warmup(planned)
        _log.warning(
            "scalewise: found a fit of %d steps, of which %d will be timed; allowed: %d or "
            "more, for a figure to rely on; train longer%s",
            planned,
            max(0, planned - warmup_steps),
            enough,
            f", or set Monitor(warmup_steps={fewer})" if fewer else "",
        )


def say_end(sweep_folder: Path, warmup_steps: int, steps: int) -> None:
    """The fit has ended after ``steps`` steps."""
    timed = max(0, steps - warmup_steps)
    rank_zero_info(
        f"scalewise: {timed} of {steps} steps were timed: scalewise report {_shown(sweep_folder)}"
    )


def say_broken_off(sweep_folder: Path, why: str) -> None:
    """An error has ended the fit; what was recorded until then stays readable."""
    _log.warning(
        "scalewise: no result: %s. What was recorded: scalewise report %s",
        why,
        _shown(sweep_folder),
    )


def _shorter_warmup(planned: int) -> int:
    """Warm-up steps that leave enough of ``planned`` steps to be timed; 0 where none do.

    A quarter of the fit, or less so that the rest is enough. Never no warm-up at all: the first
    step pays for what the others find ready.
    """
    return max(0, min(planned // 4, planned - _FEW_STEPS))


def _shown(path: Path) -> str:
    """A path as somebody who stands here would type it."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
