"""One sweep, analysed: everything a report prints, computed once."""

from __future__ import annotations

from dataclasses import dataclass

from scalewise.analysis.load import Cell, Sweep
from scalewise.analysis.runs import Configuration, configurations
from scalewise.analysis.scaling import MIN_EFFICIENCY, Pair, Refused, pair_all


@dataclass(frozen=True)
class Analysis:
    """A sweep with its configurations measured and paired."""

    sweep: Sweep
    configurations: tuple[Configuration, ...]
    pairs: tuple[Pair, ...]
    refused: tuple[Refused, ...]

    @property
    def measured(self) -> tuple[Configuration, ...]:
        """Those with at least one finished run."""
        return tuple(c for c in self.configurations if c.runs)

    @property
    def unfinished(self) -> tuple[Cell, ...]:
        """Cells without a result."""
        return tuple(c for c in self.sweep.cells if c.state != "done")

    def pair(self, config: Configuration) -> Pair | None:
        return next((p for p in self.pairs if p.multi.config_id == config.config_id), None)

    def refusal(self, config: Configuration) -> Refused | None:
        return next((r for r in self.refused if r.multi.config_id == config.config_id), None)


def analyse(sweep: Sweep, min_efficiency: float = MIN_EFFICIENCY) -> Analysis:
    """Measure every finished cell and compare what may be compared."""
    configs = configurations(sweep)
    pairs, refused = pair_all(configs, min_efficiency)
    return Analysis(sweep, configs, pairs, refused)
