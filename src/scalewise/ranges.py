"""One way to refuse a value that lies outside its range.

Constructors of models, data sets and optimizers check their arguments with it, so that every
such refusal reads alike: the argument, what was found, what is allowed.
"""

from __future__ import annotations


def require(argument: str, found: object, holds: bool, allowed: str) -> None:
    """Raise ``ValueError("<argument>: found X; allowed: Y")`` unless ``holds``."""
    if not holds:
        shown = "null" if found is None else repr(found)
        raise ValueError(f"{argument}: found {shown}; allowed: {allowed}")
