"""Imports what a rank trains with, in two thirds of the time that a plain import takes.

Python's collector of cycles is stopped meanwhile: it would walk again and again through objects
that stay for good. torchmetrics loads scipy.signal, matplotlib and transformers where they are
installed, a third of a rank's imports, and transformers starts a thread that keeps ranks from being
forked. No metric of ours needs them; a user's own may, and with those it is imported as ever.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from scalewise.config import own_classes


def import_training(*, lean: bool) -> None:
    """Import torch, Lightning and the code that trains.

    ``lean``: as far as cells need it for which :func:`is_ours` holds.
    """
    with _uncollected():
        importlib.import_module("torch")
        if lean:
            import_lean_metrics()
        importlib.import_module("scalewise.train.experiment")
        importlib.import_module("scalewise.train.provenance")
        importlib.import_module("scalewise.train.torch_internals").count_compile_threads()


def import_for_building() -> None:
    """Import what our own components are made of."""
    with _uncollected():
        importlib.import_module("torch")
        import_lean_metrics()


def import_lean_metrics() -> None:
    """Import torchmetrics as if nothing optional were installed."""
    from lightning_utilities.core import imports

    class OnlyTorch(imports.RequirementCache):
        def __bool__(self) -> bool:
            is_torch = re.match("torch(metrics)?[<>=]", self.requirement or "")
            return is_torch is not None and super().__bool__()

    own = {name: getattr(imports, name) for name in ("RequirementCache", "package_available")}
    imports.RequirementCache = OnlyTorch  # type: ignore[misc]
    imports.package_available = lambda package_name: False  # type: ignore[assignment]
    try:
        importlib.import_module("torchmetrics")
    finally:
        for name, value in own.items():
            setattr(imports, name, value)


def is_ours(plain: Mapping[str, Any]) -> bool:
    """Whether a cell is made of our own classes alone, and of torch's and Lightning's."""
    return not own_classes({key: value for key, value in plain.items() if key != "fault"})


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Keep the collector of cycles from ever walking what is allocated in here."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
