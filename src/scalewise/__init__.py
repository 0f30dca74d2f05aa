"""scalewise: do more GPUs pay here, why not, and what to do instead?"""

from __future__ import annotations

from typing import Any

__all__ = ["Monitor", "load"]
__version__ = "0.1.0"


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    # Importing Lightning takes seconds; the supervisor and the reports never need it.
    if name == "Monitor":
        from scalewise.train import Monitor

        return Monitor
    if name == "load":
        from scalewise.report import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
