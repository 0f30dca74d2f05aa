"""Cells whose model is a LightningModule that built its own optimizer.

The group ``optimizer`` of their configuration was not used: naming it would be false.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scalewise.analysis.cells import Cell


def name_own_optimizers(cells: Iterable[Cell]) -> tuple[Cell, ...]:
    """The cells, each with the optimizer it was trained with in its configuration.

    A cell without a result has that of a finished one with the same model. What was asked for and
    not used becomes a problem of the cell.
    """
    told = tuple(cells)
    found: dict[str, str] = {}
    for cell in told:
        own = own_optimizer(cell)
        if own is not None:
            found.setdefault(_model(cell), own)
    return tuple(_named(cell, own_optimizer(cell) or found.get(_model(cell))) for cell in told)


def own_optimizer(cell: Cell) -> str | None:
    """Class of what the module built; None where it built nothing, or nobody knows yet."""
    ranks = cell.result.ranks if cell.result else ()
    return next((rank.own_optimizer for rank in ranks if rank.own_optimizer is not None), None)


def _model(cell: Cell) -> str:
    return repr((cell.config or {}).get("model"))


def _named(cell: Cell, own: str | None) -> Cell:
    if own is None or cell.config is None:
        return cell
    name = f"the module's own ({own})"
    asked = [word for word in cell.planned.overrides if _is_of_optimizer(word)]
    unused = f"{' '.join(asked)} was not used: the model built its own optimizer ({own})"
    return replace(
        cell,
        config={**cell.config, "optimizer": {"name": name}},
        problems=(*cell.problems, unused) if asked and cell.result else cell.problems,
    )


def _is_of_optimizer(override: str) -> bool:
    key = override.partition("=")[0].lstrip("+~")
    return key == "optimizer" or key.startswith("optimizer.")
