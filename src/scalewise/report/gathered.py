"""What is true of several cells or configurations, said once."""

from __future__ import annotations

from collections.abc import Sequence

from scalewise.plurals import plural


def by_text(found: Sequence[tuple[str, str]], noun: str = "cell") -> list[str]:
    """One line for everything that is true of several cells, or of what ``noun`` says."""
    names: dict[str, list[str]] = {}
    for name, text in found:
        names.setdefault(text, []).append(name)
    lines = []
    for text, cells in names.items():
        distinct = list(dict.fromkeys(cells))
        more = len(distinct) - 2
        others = f" and {more} more {plural(more, noun)}" if more > 0 else ""
        lines.append(f"{', '.join(distinct[:2])}{others}: {text}")
    return lines
