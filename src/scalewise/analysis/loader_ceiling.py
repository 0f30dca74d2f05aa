"""What a configuration's loaders give without a model, and how near its training comes to that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from scalewise.analysis.communication import timed_only
from scalewise.analysis.comparability import differences
from scalewise.analysis.configuration import Configuration
from scalewise.analysis.labels import number
from scalewise.analysis.model import workload

NEAR: Final = 0.1
"""Share of the ceiling by which training may lie below it where its loader is the limit."""

_SAME: Final = ("dataset", "data_file", "host", "devices", "device_model", "cores_per_device")
"""Fields of identity that loaders depend on."""


@dataclass(frozen=True)
class Ceiling:
    """Global samples/s of the same loaders on as many ranks; ``missing`` says why one is None."""

    cell: str
    """Where it was measured."""
    warm_samples_per_s: float | None
    cold_samples_per_s: float | None
    trained_samples_per_s: float | None
    """Of the configuration, mean over its runs."""
    reached_share: float | None
    """Of the ceiling with a warm page cache."""
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_limit(self) -> bool:
        return self.reached_share is not None and 1 - NEAR <= self.reached_share <= 1 + NEAR

    @property
    def words(self) -> str:
        """``its loaders give 812 samples/s without a model``; empty where that is not known."""
        if self.warm_samples_per_s is None:
            return ""
        return f"its loaders give {number(self.warm_samples_per_s)} samples/s without a model"

    def lines(self, to_try: str = "") -> Iterator[str]:
        """How near training comes, what to try where that is near, and whether storage keeps up."""
        if self.reached_share is not None:
            said = f"training reaches {self.reached_share:.0%} of its loaders' ceiling, "
            said += f"{number(self.warm_samples_per_s or 0.0)} samples/s with a warm page cache"
            if self.is_limit:
                said += ": the loader is the limit" + (f". To try: {to_try}" if to_try else "")
            elif self.reached_share > 1:
                said += ": something slowed the loaders when they were measured; measure them again"
            yield said
        cold, trained = self.cold_samples_per_s, self.trained_samples_per_s
        if cold is not None and trained is not None and cold < trained * (1 - NEAR):
            yield (
                f"a first epoch is limited by storage: with a cold page cache its loaders give "
                f"{number(cold)} samples/s, and training takes {number(trained)}"
            )


def find_ceilings(configs: Sequence[Configuration]) -> dict[str, Ceiling]:
    """``config_id`` to ceiling, of timed configurations whose loaders a cell measured."""
    measured = [c for c in configs if c.runs and workload(c.cells[0].config) == "loader"]
    found = {}
    for config in timed_only(configs) if measured else ():
        loader = next((c for c in measured if _same_loader(c, config)), None)
        if loader is not None:
            found[config.config_id] = _ceiling(loader, config)
    return found


def _same_loader(loader: Configuration, config: Configuration) -> bool:
    if not config.runs or _batch(loader) != _batch(config):
        return False
    left, right = (
        {name: value for name, value in one.identity.items() if name.startswith(_SAME)}
        for one in (loader, config)
    )
    return not differences(left, right, "seed")


def _batch(config: Configuration) -> tuple[int, int, int]:
    """Samples of a batch on a device and on all of them, and batches handed over as one."""
    cell = config.runs[0].cell
    assert cell.result is not None
    accumulated = (cell.config or {}).get("accumulate_grad_batches") or 1
    replayed = cell.result.ranks[0].execution
    together = 1 if replayed is None else replayed.steps_per_batch
    return (
        cell.result.per_device_batch_size,
        cell.result.global_batch_size // accumulated,
        together if cell.loader is None else cell.loader.steps_per_batch,
    )


def _ceiling(loader: Configuration, config: Configuration) -> Ceiling:
    cell, trained = loader.runs[0].cell, config.estimate("samples_per_s")
    record = cell.loader
    missing = {"record": "its loader.json is gone"} if record is None else record.missing
    rates = (record.warm, record.cold) if record else (None, None)
    warm, cold = (one.global_samples_per_s if one else None for one in rates)
    rate = None if trained is None else trained.value
    reached = rate / warm if rate is not None and warm is not None else None
    return Ceiling(cell.planned.name, warm, cold, rate, reached, missing)
