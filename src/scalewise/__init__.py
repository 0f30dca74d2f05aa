"""scalewise: do more GPUs pay here, why not, and what to do instead?"""

from __future__ import annotations

from typing import Any

__all__ = ["Monitor", "load", "monitor"]


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    # Importing Lightning takes seconds; the supervisor and the reports never need it.
    if name == "Monitor":
        from scalewise.train import Monitor

        return Monitor
    if name == "monitor":
        from scalewise.script import monitor

        return monitor
    if name == "load":
        from scalewise.report import load

        return load
    if name == "__version__":
        from importlib.metadata import version

        return version("scalewise")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
