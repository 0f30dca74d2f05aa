"""Nouns beside a number."""

from __future__ import annotations


def plural(number: int, noun: str) -> str:
    """``noun`` as it stands after ``number``: ``cell`` after 1, else ``cells``."""
    return noun if number == 1 else f"{noun}s"
