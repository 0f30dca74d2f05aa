"""Imports what a rank trains with, in a little over half the time that a plain import takes.

Most of a trivial cell's time is imports, and most of that is not what it needs:

- Python's collector of cycles walks again and again through objects that stay for good. It is
  stopped meanwhile, and what was imported is then left out of its walks (``gc.freeze``).
- torchmetrics loads every optional package that it finds: scipy.signal for an old alias, matplotlib
  for ``Metric.plot``, transformers (and with it scikit-learn, pandas, and pyarrow with its thread)
  for scores of texts. No metric of ours needs one of them.

Neither changes what a step does. A user's own classes may well use what torchmetrics builds on
such a package: with them it is imported as ever.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_utilities.core.imports import RequirementCache

_PACKAGE = "torchmetrics"
_FLAGS = f"{_PACKAGE}.utilities.imports"
"""Where torchmetrics says, as boolean-like constants, which optional packages there are."""
_NEEDED = ("multiprocessing", "torch", "torchmetrics")
"""Packages that such a constant may speak of and that are not optional."""
_BLOCKED = ("scipy", "matplotlib")
_HEAVY = ("scipy.signal", "matplotlib")
"""Where they are loaded already, nothing is gained."""


def import_training(plain: Mapping[str, Any] | None) -> None:
    """Import torch, Lightning and the code that trains the cell with configuration ``plain``.

    None stands for any cell for which :func:`is_ours` holds.
    """
    with _uncollected():
        importlib.import_module("torch")
        if plain is None or is_ours(plain):
            import_lean_metrics()
        importlib.import_module("scalewise.train.experiment")
        importlib.import_module("scalewise.train.provenance")


def import_for_forks() -> None:
    """Import what the ranks of cells need that are made of our own classes alone."""
    import_training(None)


def import_for_building() -> None:
    """Import what our own components are made of."""
    with _uncollected():
        importlib.import_module("torch")
        import_lean_metrics()


def import_lean_metrics() -> bool:
    """Import torchmetrics as if nothing optional were installed; False if it has to be imported
    with all there is, because it has changed or is loaded already."""
    if any(name in sys.modules for name in (_PACKAGE, *_HEAVY)):
        return False
    try:
        with _absent(_BLOCKED):
            for flag in _optional(_load_flags()):
                flag.available, flag.message = False, "left out by scalewise to start faster"
            importlib.import_module(_PACKAGE)
    except (ImportError, AttributeError):
        # Another torchmetrics than those we know: forget what was loaded of it.
        for name in [n for n in sys.modules if n.partition(".")[0] == _PACKAGE]:
            del sys.modules[name]
        return False
    return True


def is_ours(plain: Mapping[str, Any]) -> bool:
    """Whether a cell is made of our own classes alone."""
    targets = [str(plain[key].get("_target_", "")) for key in ("model", "dataset", "optimizer")]
    return all(target.startswith("scalewise.") for target in targets)


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """What is allocated in here is never walked by the collector of cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def _absent(names: tuple[str, ...]) -> Iterator[None]:
    """Packages that cannot be imported in here: None in ``sys.modules`` is Python's own way."""
    from lightning_utilities.core import imports

    before = {name: sys.modules[name] for name in names if name in sys.modules}
    sys.modules.update(dict.fromkeys(names))  # type: ignore[arg-type] # documented, not typed
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]
        sys.modules.update(before)
        # It remembers what it did not find; from here on it is there again.
        imports.package_available.cache_clear()
        imports.module_available.cache_clear()


def _optional(flags: ModuleType) -> list[RequirementCache]:
    """The constants that speak of packages which torchmetrics does without."""
    from lightning_utilities.core.imports import RequirementCache

    found = [flag for flag in vars(flags).values() if isinstance(flag, RequirementCache)]
    optional = [flag for flag in found if _named(flag) not in _NEEDED]
    if not optional:
        raise ImportError(f"{_FLAGS} has no constants for optional packages")
    return optional


def _named(flag: RequirementCache) -> str:
    """The package of ``torch>=2.1.0``, say."""
    return re.split(r"[^\w.-]", flag.requirement or flag.module or "", maxsplit=1)[0]


def _load_flags() -> ModuleType:
    """The module of flags alone, before the package around it reads them."""
    package = importlib.util.find_spec(_PACKAGE)
    if package is None or package.origin is None:
        raise ModuleNotFoundError(_PACKAGE)
    path = Path(package.origin).parent / "utilities" / "imports.py"
    spec = importlib.util.spec_from_file_location(_FLAGS, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ModuleNotFoundError(_FLAGS)
    module = importlib.util.module_from_spec(spec)
    sys.modules[_FLAGS] = module
    spec.loader.exec_module(module)
    return module
