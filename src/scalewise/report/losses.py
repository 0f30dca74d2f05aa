"""Which loss a figure is: one of training says less than one of validation."""

from __future__ import annotations

from collections.abc import Sequence

from scalewise.analysis.runs import Configuration


def loss_name(config: Configuration) -> str | None:
    """The loss that :attr:`~scalewise.analysis.run.Run.final_loss` is; None without one."""
    return " / ".join(dict.fromkeys(run.loss.name for run in config.runs if run.loss)) or None


def reached_header(configs: Sequence[Configuration]) -> str:
    """The column's name, with the loss's where all rows share it."""
    names = _names(configs)
    return f"{names.pop()} reached" if len(names) == 1 else "loss reached"


def told_apart(text: str, config: Configuration, configs: Sequence[Configuration]) -> str:
    """The figure of one of ``configs`` as ``text``, with its loss where the rows share none."""
    name = loss_name(config)
    if name is None or len(_names(configs)) == 1:
        return text
    return f"{text} ({name.removesuffix('_loss')})"


def _names(configs: Sequence[Configuration]) -> set[str]:
    return {name for config in configs if (name := loss_name(config))}
