"""What can be said against a configuration before it is planned, at no cost."""

from __future__ import annotations

from typing import Any

from scalewise.config import CellConfig, Component, ConfigError, check_module, instantiate
from scalewise.sweep.shipped import is_shipped
from scalewise.train.imports import import_for_building


def check_components(cell: CellConfig) -> None:
    """Build what costs nothing to build, so that wrong arguments are found before any start.

    Our models are built without memory (on torch's ``meta`` device), our datasets read nothing
    before they are asked for samples, and an optimizer is content with one parameter. A user's
    own classes are only looked for, and our own options are known to build. Raises
    :class:`ConfigError`.
    """
    for key in ("model", "dataset", "optimizer"):
        component = getattr(cell, key)
        known = f"{key} {component!r}"
        if known not in _sound:
            if not is_shipped(key, component):
                _check_component(key, component, known)
            _sound.add(known)


def _check_component(key: str, component: Component, known: str) -> None:
    if not component.target.startswith("scalewise."):
        check_module(key, component)
        return
    import_for_building()
    import torch

    given: dict[str, Any] = {}
    if key == "optimizer":
        weight = torch.nn.Parameter(torch.zeros(2, 2))
        given = {"params": [("weight", weight)], "device_kind": "cpu"}
    with torch.device("meta" if key == "model" else "cpu"):
        built = instantiate(key, component, **given)
    samples = getattr(built, "train_samples", None) if key == "dataset" else None
    if samples is not None:
        _samples[known] = samples


_sound: set[str] = set()
"""Components that were built once: thousands of cells share a few."""
_samples: dict[str, int] = {}
"""Training samples of those datasets that know them without reading more than a size."""


def samples_are(dataset: Component, samples: int) -> None:
    """Remember how many training samples ``dataset`` has, for :func:`check_samples`."""
    _samples[f"dataset {dataset!r}"] = samples


def check_samples(cell: CellConfig) -> None:
    """Refuse a batch that is larger than the training set, where that is known before reading it.

    Raises :class:`ConfigError`. Any other data set is found wanting by the cell's ranks.
    """
    if cell.workload != "train":
        return
    size = 1 if cell.batch_size == "auto" else cell.batch_size
    devices = cell.strategy.devices
    shares = 1 if devices == "auto" or cell.scaling == "strong" else devices
    batches = cell.accumulate_grad_batches
    found = size * shares * batches
    known = f"dataset {cell.dataset!r}"
    if known not in _samples and _may_be_short(cell.dataset, found):
        _check_component("dataset", cell.dataset, known)
    samples = _samples.get(known)
    if samples is None:
        return
    if found > samples:
        parts = [f"{size} on each of {shares} devices"] if shares > 1 else []
        parts += [f"accumulate_grad_batches={batches}"] if batches > 1 else []
        each = f" ({', '.join(parts)})" if parts else ""
        raise ConfigError(
            f"batch_size: found {found} samples a step{each}, but the training "
            f"set of dataset={cell.dataset.name} has {samples}; allowed: at most {samples}"
        )


def _may_be_short(dataset: Component, wanted: int) -> bool:
    """Whether one of our own options, which nobody built, had better be asked for its size.

    Half of what is asked for may be held out for validation; with less than that, torch need not
    be imported to know that it is enough.
    """
    asked = dataset.arguments.get("train_samples", dataset.arguments.get("samples"))
    ours = dataset.target.startswith("scalewise.")
    return ours and isinstance(asked, int) and wanted > asked // 2


def check_fit(plain: dict[str, Any]) -> None:
    """Refuse a model and a dataset that say they do not fit. Raises :class:`ConfigError`."""
    takes = plain["model"].get("takes")
    gives = plain["dataset"].get("gives")
    if takes is not None and gives is not None and takes != gives:
        raise ConfigError(
            f"dataset: found {plain['dataset'].get('name')!r}, which gives {gives}; model "
            f"{plain['model'].get('name')!r} takes {takes}: choose a dataset that gives {takes}"
        )
