"""How many training samples a user's own data set has, where its source says so in plain words.

Nothing is imported and nothing is built: most data sets read their files when they are built. Only
what the source of the class itself sets down is believed, ``train_samples`` of an object with
``train`` or else ``__len__``, as a number or as an argument of the constructor. Any other is left
to the ranks, which have the data set.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any


def samples_of(name: str, module: ast.Module, arguments: Mapping[str, Any]) -> int | None:
    """Training samples of ``name(**arguments)``, a class of ``module``; None if not in plain words.

    A class that computes its size, changes it or gets it from a base class does not tell.
    """
    found = [node for node in module.body if isinstance(node, ast.ClassDef) and node.name == name]
    if len(found) != 1 or found[0].decorator_list:
        return None
    body = found[0]
    names = {node.name for node in body.body if isinstance(node, ast.FunctionDef)}
    if "train_dataloader" in names:
        return None  # a LightningDataModule, whose batches are its own
    size = _attribute("train_samples", body, arguments)
    if size is None and not _times_set("train", body) and all(map(_has_no_parts, body.bases)):
        size = _length(body, arguments)
    return size if type(size) is int and size >= 0 else None


def _has_no_parts(base: ast.expr) -> bool:
    """Whether a base class is torch's ``Dataset``; any other might give the object a ``train``."""
    return (base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "")) == "Dataset"


def _length(body: ast.ClassDef, arguments: Mapping[str, Any]) -> Any:
    """What ``__len__`` returns, if returning is all it does."""
    for node in body.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__len__" and not node.decorator_list:
            said = [one for one in node.body if not _is_docstring(one)]
            if len(said) == 1 and isinstance(said[0], ast.Return):
                return _value(said[0].value, body, arguments)
    return None


def _value(value: ast.expr | None, body: ast.ClassDef, arguments: Mapping[str, Any]) -> Any:
    if isinstance(value, ast.Constant):
        return value.value
    if isinstance(value, ast.Attribute) and _is_self(value):
        return _attribute(value.attr, body, arguments)
    return None


def _attribute(name: str, body: ast.ClassDef, arguments: Mapping[str, Any]) -> Any:
    """The one value that the class, or the first level of its constructor, gives ``self.name``."""
    values = [
        value for node in body.body for target, value in _assigned(node) if _names(target, name)
    ]
    init = next(
        (n for n in body.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None
    )
    if init is not None:
        values += [
            value
            for node in init.body
            for target, value in _assigned(node)
            if isinstance(target, ast.Attribute) and target.attr == name and _is_self(target)
        ]
    if len(values) != 1 or _times_set(name, body) != 1:
        return None
    if isinstance(values[0], ast.Constant):
        return values[0].value
    if isinstance(values[0], ast.Name) and init is not None:
        return _parameter(values[0].id, init, arguments)
    return None


def _parameter(name: str, init: ast.FunctionDef, arguments: Mapping[str, Any]) -> Any:
    """What ``name`` is in the constructor: an argument, or its default, that nothing changes."""
    if any(isinstance(n, ast.Name) and n.id == name and not isinstance(n.ctx, ast.Load)
           for n in ast.walk(init)):  # fmt: skip
        return None
    if name in arguments:
        return arguments[name]
    named = [*init.args.args, *init.args.kwonlyargs]
    missing = len(init.args.args) - len(init.args.defaults)
    defaults = [*[None] * missing, *init.args.defaults, *init.args.kw_defaults]
    for parameter, default in zip(named, defaults, strict=True):
        if parameter.arg == name and isinstance(default, ast.Constant):
            return default.value
    return None


def _assigned(node: ast.stmt) -> list[tuple[ast.expr, ast.expr]]:
    """``target = value`` and ``target: type = value`` as pairs; none for any other statement."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        return [(node.targets[0], node.value)]
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        return [(node.target, node.value)]
    return []


def _times_set(name: str, body: ast.ClassDef) -> int:
    """How often anything in the class binds or changes ``name``, of ``self`` or of the class."""
    bound = sum(
        isinstance(node, (ast.Name, ast.Attribute))
        and _names(node, name)
        and not isinstance(node.ctx, ast.Load)
        for node in ast.walk(body)
    )
    return bound + sum(isinstance(n, ast.FunctionDef) and n.name == name for n in body.body)


def _names(target: ast.expr, name: str) -> bool:
    if isinstance(target, ast.Attribute):
        return target.attr == name
    return isinstance(target, ast.Name) and target.id == name


def _is_self(target: ast.Attribute) -> bool:
    return isinstance(target.value, ast.Name) and target.value.id == "self"


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
