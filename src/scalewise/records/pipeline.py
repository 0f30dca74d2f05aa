"""Where a rank stood in a pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class PipelineRecord:
    """The schedule one rank followed."""

    schedule: Literal["1f1b", "gpipe"]
    stages: int
    """Of the whole pipeline, one a device."""
    stage: int
    """This rank's, from 0."""
    microbatches: int
    """Parts of a replica's batch, one behind another."""

    @property
    def bubble_share(self) -> float:
        """Share of the schedule in which a device has nothing to do, were all stages equal.

        ``(p - 1) / (m + p - 1)`` with p stages and m microbatches, for GPipe and 1F1B alike
        (Huang et al., 2019; Narayanan et al., 2021, section 2.2).
        """
        return (self.stages - 1) / (self.microbatches + self.stages - 1)
