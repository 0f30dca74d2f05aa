"""Requests as a command with these overrides makes them."""

from __future__ import annotations

from scalewise.sweep.compose import compose_cell
from scalewise.sweep.plan import Request, request


def asked(*overrides: str) -> Request:
    """The request of a cell with ``overrides``; raises ConfigError as the command does."""
    return request(overrides, compose_cell(list(overrides)))
