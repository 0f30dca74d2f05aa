"""An optimizer asked for beside a LightningModule, which builds its own and never takes it."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable
from typing import Any

from scalewise.components import Component
from scalewise.errors import ConfigError

_NO_LIGHTNING = frozenset({"nn.Module", "torch.nn.Module"})


def typed_optimizer(overrides: Iterable[str]) -> str:
    """The first of ``overrides`` that chooses or sets an optimizer; empty without one."""
    for override in overrides:
        key = override.partition("=")[0].lstrip("+~")
        if key == "optimizer" or key.startswith("optimizer."):
            return override
    return ""


def may_be_lightning(name: str, module: ast.Module) -> bool:
    """Whether the class ``name`` of a source file may be a LightningModule, as far as that tells.

    What a function returns no import tells either: its cell records what it was trained with.
    """
    defined = {
        node.name: node
        for node in module.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    }
    found = defined.get(name)
    if not isinstance(found, ast.ClassDef):
        return found is None
    bases = [ast.unparse(base) for base in found.bases]
    return any(
        base not in _NO_LIGHTNING and (base == name or may_be_lightning(base, module))
        for base in bases
    )


def refuse_beside_lightning(component: Component, target: Any, typed: str) -> None:
    """Raises :class:`ConfigError` if the imported ``target`` is a LightningModule's class."""
    import pytorch_lightning as pl

    if inspect.isclass(target) and issubclass(target, pl.LightningModule):
        raise ConfigError(
            f"optimizer: found {typed} beside model._target_={component.target}, a LightningModule,"
            " which builds its own; allowed: nothing of optimizer; leave it out, or give the class "
            "an argument for it: model.KEY=VALUE"
        )
