"""A cell that runs on other hosts: a link to each of them, and what they have answered."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from scalewise.records import Cause, CellFolder
from scalewise.sweep.demand import Demand
from scalewise.sweep.ended_elsewhere import record_loss
from scalewise.sweep.job import Outcome
from scalewise.sweep.plan import Cell


@dataclass(frozen=True)
class Lost:
    """A link broke before its host had answered."""

    reason: str
    """One line."""
    is_host: bool = True
    """False where the host lives and only the processes of the cell are gone."""


class HostLink(Protocol):
    """One host's part of one running cell."""

    host: str

    def answer(self) -> Outcome | Lost | None:
        """How it ended; None while it runs. Does not wait."""

    def tell(self, line: str) -> None:
        """Say that the sweep is there, and who shares the host from now on (if not empty)."""

    def stop(self) -> None:
        """Have the host end and record its part."""

    def drop(self) -> None:
        """Break the link, and free what it holds."""


@dataclass
class RemoteCell:
    """A cell that runs."""

    cell: Cell
    folder: CellFolder
    wanted: Demand
    links: Sequence[HostLink]
    first_attempt: int
    began_at: float
    """Unix time."""
    started: float = field(default_factory=time.monotonic)
    answers: dict[int, Outcome | Lost] = field(default_factory=dict)
    """By the index of the host."""
    failed_at: float | None = None
    stopped: bool = False

    @property
    def hosts(self) -> set[str]:
        return {link.host for link in self.links}

    def take_answers(self) -> None:
        for index, link in enumerate(self.links):
            if index in self.answers:
                continue
            answer = link.answer()
            if answer is not None:
                self.answers[index] = answer
                if isinstance(answer, Lost) or answer.state != "done":
                    self.failed_at = self.failed_at or time.monotonic()

    @property
    def ended(self) -> bool:
        return len(self.answers) == len(self.links)

    @property
    def loss(self) -> Lost | None:
        return next((a for a in self.answers.values() if isinstance(a, Lost)), None)

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.started

    @property
    def lost_a_host(self) -> bool:
        """False where all answered or only processes died."""
        return any(isinstance(a, Lost) and a.is_host for a in self.answers.values())

    def outcome_without_result(self) -> Outcome:
        """Record why there is no result, where the hosts themselves could not."""
        lost = self.loss
        if lost is not None:
            cause: Cause = "host" if lost.is_host else "supervisor"
            return self._record(cause, lost.reason)
        answers = [a for a in self.answers.values() if isinstance(a, Outcome)]
        failed = [a for a in answers if a.state == "failed"]
        # Who was merely told to stop knows nothing.
        return self._record("host", failed[0].message) if self.stopped and failed else answers[0]

    def _record(self, cause: Cause, message: str) -> Outcome:
        return record_loss(self.folder, self.first_attempt, cause, message, self.began_at)
