"""What a class in a source file takes, read from its syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from scalewise.errors import ConfigError
from scalewise.validation import DataError, closest, convert

_PLAIN = {"int": int, "float": float, "str": str, "bool": bool}


class Undecided(Exception):  # noqa: N818 - no error: the source does not tell
    """Only importing the module can tell."""


def check_call(
    key: str,
    target: str,
    name: str,
    module: ast.Module,
    arguments: Mapping[str, Any],
    given: Sequence[str] = (),
) -> None:
    """Whether ``name(**arguments)`` fits the class or function ``name`` of ``module``.

    ``given`` are parameters that the caller passes itself.

    Raises :class:`ConfigError` if not, and :class:`Undecided` where the source does not tell.
    """
    signature = _signature(_definition(key, target, name, module), module)
    named = [*signature.args, *signature.kwonlyargs]
    names = [argument.arg for argument in named]
    open_to = [name for name in names if name not in given]
    for argument, value in arguments.items():
        if argument not in open_to:
            if signature.kwarg is not None and argument not in given:
                continue
            raise ConfigError(
                f"{key}.{argument}: unknown key{closest(argument, open_to)}; "
                f"allowed: {', '.join(open_to) or 'none'}"
            )
        annotation = named[names.index(argument)].annotation
        hint = _PLAIN.get(annotation.id) if isinstance(annotation, ast.Name) else None
        if hint is not None:
            try:
                convert(hint, value, f"{key}.{argument}")
            except DataError as error:
                raise ConfigError(str(error)) from None
    for missing in _required(signature):
        if missing not in arguments and missing not in given:
            raise ConfigError(f"{key}.{missing}: missing; {target} needs it")


def _definition(key: str, target: str, name: str, module: ast.Module) -> ast.AST:
    defined = {
        node.name: node
        for node in module.body
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
    }
    if name in defined:
        return defined[name]
    plain = (ast.ClassDef, ast.FunctionDef, ast.Import, ast.Expr)
    if all(isinstance(node, plain) or _binds_other(node, name) for node in module.body):
        public = [n for n in defined if n[0].isupper()]
        raise ConfigError(
            f"{key}._target_: found {target!r}; {target.rpartition('.')[0]} has no {name!r}"
            f"{closest(name, public)}; allowed: {', '.join(public) or 'nothing public'}"
        )
    raise Undecided


def _binds_other(node: ast.stmt, name: str) -> bool:
    """Whether a statement surely gives nothing the name ``name``."""
    if isinstance(node, ast.ImportFrom):
        return all(
            alias.name != "*" and (alias.asname or alias.name) != name for alias in node.names
        )
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        bound = {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
        return name not in bound
    return False


def _signature(found: ast.AST, module: ast.Module) -> ast.arguments:
    """Without ``self``. Raises :class:`Undecided`."""
    if isinstance(found, ast.FunctionDef) and not found.decorator_list:
        return found.args
    if not isinstance(found, ast.ClassDef) or found.decorator_list or found.keywords:
        raise Undecided
    for node in found.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__new__":
            raise Undecided
    for node in found.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            if node.decorator_list or node.args.posonlyargs or not node.args.args:
                raise Undecided
            return ast.arguments(
                posonlyargs=[],
                args=node.args.args[1:],
                vararg=node.args.vararg,
                kwonlyargs=node.args.kwonlyargs,
                kw_defaults=node.args.kw_defaults,
                kwarg=node.args.kwarg,
                defaults=node.args.defaults,
            )
    bases = {n.name: n for n in module.body if isinstance(n, ast.ClassDef)}
    if len(found.bases) == 1 and isinstance(found.bases[0], ast.Name):
        base = bases.get(found.bases[0].id)
        if base is not None and base is not found:
            return _signature(base, module)
    raise Undecided


def _required(signature: ast.arguments) -> list[str]:
    count = len(signature.args) - len(signature.defaults)
    required = [argument.arg for argument in signature.args[:count]]
    keyword = zip(signature.kwonlyargs, signature.kw_defaults, strict=True)
    return required + [argument.arg for argument, default in keyword if default is None]
