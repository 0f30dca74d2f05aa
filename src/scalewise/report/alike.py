"""What all rows of a report have in common, said once, so that the rows tell only what differs."""

from __future__ import annotations

from collections.abc import Callable

from scalewise.analysis.pruned import pruning_word
from scalewise.analysis.runs import Configuration
from scalewise.analysis.summary import Analysis


def same_in_every_row(analysis: Analysis) -> str:
    """One line; empty where nothing was measured."""
    words = [_common(analysis, of) for of in (*map(_group, _GROUPS), *_FACTS)]
    said = ", ".join(word for word in words if word)
    return f"the same in every row: {said}" if said else ""


def same_batch(analysis: Analysis) -> bool:
    """Whether :func:`same_in_every_row` says how many samples all devices take a step."""
    return _common(analysis, _batch) is not None and not any(_weak(c) for c in analysis.measured)


def _common(analysis: Analysis, of: Callable[[Configuration], str | None]) -> str | None:
    found = {of(config) for config in analysis.measured}
    return found.pop() if len(found) == 1 else None


_GROUPS = ("dataset", "precision", "execution", "optimizer")


def _group(group: str) -> Callable[[Configuration], str | None]:
    def of(config: Configuration) -> str | None:
        name = config.name(group)
        return None if name is None else f"{group}={name}"

    return of


def _rate(config: Configuration) -> str | None:
    rate = config.identity.get("optimizer.lr")
    return None if rate is None else f"lr={rate}"


def _batch(config: Configuration) -> str | None:
    batch = config.identity.get("batch")
    where = "on each device" if _weak(config) else "of all devices"
    return None if batch is None else f"{batch} samples a step {where}"


def _weak(config: Configuration) -> bool:
    return config.identity.get("scaling") == "weak"


def _steps(config: Configuration) -> str | None:
    steps, warmup = (config.identity.get(key) for key in ("max_steps", "warmup_steps"))
    if steps in (None, "None"):
        return None
    return f"{steps} steps" + ("" if warmup is None else f" ({warmup} to warm up)")


def _seed(config: Configuration) -> str | None:
    seed = config.identity.get("seed")
    return None if seed is None else f"seed={seed}"


def _device(config: Configuration) -> str | None:
    model = config.identity.get("device_model")
    return None if model is None else f"on {model}"


_FACTS = (_rate, pruning_word, _batch, _steps, _seed, _device)
