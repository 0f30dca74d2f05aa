"""A time in which nothing of a process ran, though no kernel queue or lock held it up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Standstill:
    """By the clock of the steps' ``start_ns``; it began up to a quarter of a second earlier."""

    since_ns: int
    until_ns: int

    @property
    def seconds(self) -> float:
        return (self.until_ns - self.since_ns) / 1e9
