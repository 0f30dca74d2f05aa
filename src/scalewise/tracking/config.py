"""The config group ``tracking``: which mirrors a run gets, and how they are named."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

TrackerName: TypeAlias = Literal["trackio", "wandb"]
WandbMode: TypeAlias = Literal["auto", "offline", "online"]

_PROJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True)
class TrackingConfig:
    """What the mirror process hands to Trackio and WandB."""

    name: str = "both"
    """The option of the group: ``both``, ``trackio``, ``wandb`` or ``none``."""
    trackers: tuple[TrackerName, ...] = ("trackio", "wandb")
    """The mirrors; none of them is ever the source of a number."""
    project: str = "scalewise"
    """The project in both trackers."""
    wandb_mode: WandbMode = "auto"
    """``auto`` is online if the user is logged in, else offline; ``WANDB_MODE`` goes before it."""
    entity: str | None = None
    """WandB's user or team; None for the one the user is logged in as."""
    tags: tuple[str, ...] = ()
    """Tags beside those of the cell itself (model, dataset, strategy, precision, ...)."""
    system_interval_s: Annotated[float, Field(ge=0.1, le=3600)] = 1.0
    """Device samples closer together than this are thinned out for the trackers."""

    def __post_init__(self) -> None:
        if len(set(self.trackers)) != len(self.trackers):
            raise ValueError(f"trackers: found {list(self.trackers)}; each may be named once")
        if not _PROJECT.fullmatch(self.project):
            raise ValueError(
                f"project: found {self.project!r}; allowed: letters, digits, '.', '_' and '-', "
                "at most 128, a letter or digit first"
            )
