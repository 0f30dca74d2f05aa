"""``strategy=auto``: short runs of every candidate, and then the better one.

Two stages, like ``repeats=auto``: what is trained is decided from the records of stage one,
through ``analysis``, so that a sweep that is resumed decides the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from scalewise.config import build_cell
from scalewise.records import StrategyDecision, SweepFolder
from scalewise.sweep.plan import Request
from scalewise.train.strategies.auto import AutoConfig


@dataclass(frozen=True)
class Chosen:
    """What one request for ``strategy=auto`` has come to."""

    trained: Request | None
    """It with the chosen strategy; None where nothing could be decided."""
    decision: StrategyDecision | None
    lines: tuple[str, ...]
    """To say it in."""


def stage_one(requests: Iterable[Request]) -> Iterator[Request]:
    """Every request; in place of one for ``strategy=auto``, short runs of its candidates."""
    for one in requests:
        if isinstance(one.cell.strategy, AutoConfig):
            yield from _probes(one).values()
        else:
            yield one


def open_strategies(requests: Iterable[Request]) -> tuple[Request, ...]:
    """The distinct requests among these that leave the strategy to measurement."""
    found = [one for one in requests if isinstance(one.cell.strategy, AutoConfig)]
    return tuple({one.config_id: one for one in found}.values())


def describe_strategies(requests: Iterable[Request]) -> list[str]:
    """What every request of ``strategy=auto`` will train, as far as that is known before."""
    return [
        f"{' and '.join(one.cell.strategy.candidates)}, model={one.cell.model.name}"
        for one in open_strategies(requests)
        if isinstance(one.cell.strategy, AutoConfig)
    ]


def choose(folder: SweepFolder, asked: Request) -> Chosen:
    """Decide from the records of the short runs."""
    from scalewise.analysis.load import load_sweep
    from scalewise.analysis.runs import configurations
    from scalewise.analysis.strategy_choice import UndecidedError, choose_strategy

    strategy = asked.cell.strategy
    assert isinstance(strategy, AutoConfig)
    known = {c.config_id: c for c in configurations(load_sweep(folder.path))}
    probes = {name: one.config_id for name, one in _probes(asked).items()}
    candidates = {name: known[identity] for name, identity in probes.items() if identity in known}
    most = max((c.devices or 1 for c in candidates.values()), default=1)
    batch = asked.cell.batch_of(most)
    try:
        decision = choose_strategy(
            candidates, strategy.probe_steps, batch * asked.cell.accumulate_grad_batches
        )
    except UndecidedError as reason:
        return Chosen(None, None, (f"not decided: {reason}",))
    plain = {**asked.plain, "strategy": strategy.plain()[decision.chosen]}
    typed = (*asked.overrides, f"strategy={decision.chosen}")
    trained = Request(typed, plain, build_cell(plain))
    return Chosen(trained, decision, decision.lines())


def _probes(asked: Request) -> dict[str, Request]:
    strategy = asked.cell.strategy
    assert isinstance(strategy, AutoConfig)
    found = {}
    for name, settings in strategy.plain().items():
        plain: dict[str, Any] = {
            **asked.plain,
            "strategy": settings,
            "max_steps": strategy.probe_steps,
            "max_epochs": None,
            "warmup_steps": strategy.probe_warmup_steps,
            "validation": "never",
            "repeats": strategy.probe_repeats,
            # What a short run without validation can tell.
            "sweep": {**asked.plain["sweep"], "objective": "global_samples_per_s"},
        }
        typed = (*asked.overrides, f"strategy={name}", f"max_steps={strategy.probe_steps}")
        found[name] = Request(typed, plain, build_cell(plain))
    return found
