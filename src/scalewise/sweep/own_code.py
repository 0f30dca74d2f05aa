"""A user's own classes, checked before anything starts, and without importing them here.

Most are plain classes whose source tells their arguments: reading it takes milliseconds. Where it
does not (a name that is imported or made at run time, a decorator, a constructor inherited from a
library), one short-lived process imports all of them together and looks.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from scalewise.components import (
    OPTIMIZER_GIVEN,
    Component,
    bind,
    check_module,
    check_optimizer,
    load_target,
)
from scalewise.errors import ConfigError, in_one_line
from scalewise.sweep.component_checks import check_samples, samples_are
from scalewise.sweep.own_optimizer import (
    may_be_lightning,
    refuse_beside_lightning,
    typed_optimizer,
)
from scalewise.sweep.own_samples import samples_of
from scalewise.sweep.plan import Request
from scalewise.sweep.signature import Undecided, check_call
from scalewise.validation import build, to_plain

_Asked = tuple[str, Component, str]
"""Group, what it names, and an optimizer that was typed beside a model that may not take it."""
_IMPORT_S = 120.0
"""An import that takes longer than this is left for the cell itself to find wanting."""


def check_own_code(requests: Iterable[Request]) -> None:
    """Raises :class:`ConfigError` for the first class or argument that is not there.

    And for a batch that is larger than a data set whose source says how large that is, and an
    optimizer that is asked for beside a class that builds its own.
    """
    undecided: dict[str, _Asked] = {}
    sound: set[str] = set()
    for one in requests:
        for key in ("model", "dataset", "optimizer"):
            component: Component = getattr(one.cell, key)
            known = f"{key} {component!r}"
            if component.target.startswith("scalewise.") or known in sound:
                continue
            sound.add(known)
            check_module(key, component)
            try:
                _check_source(key, component)
            except Undecided:
                undecided[known] = (key, component, "")
        typed, model = typed_optimizer(one.overrides), one.cell.model
        if typed and not model.target.startswith("scalewise.") and _may_be_lightning(model):
            undecided[f"model {model!r} {typed}"] = ("model", model, typed)
        if not one.cell.dataset.target.startswith("scalewise."):
            check_samples(one.cell)
    if undecided:
        _check_by_import(list(undecided.values()))


def _may_be_lightning(model: Component) -> bool:
    module, _, name = model.target.rpartition(".")
    try:
        return may_be_lightning(name, _parse("model", module))
    except Undecided:
        return True


def _parse(key: str, module: str) -> ast.Module:
    """The source of a module. Raises :class:`Undecided` where there is none to read."""
    spec = importlib.util.find_spec(module)
    origin = None if spec is None else spec.origin
    if origin is None or not origin.endswith(".py"):
        raise Undecided
    try:
        return ast.parse(Path(origin).read_text(encoding="utf-8"), origin)
    except SyntaxError as error:
        raise ConfigError(
            f"{key}._target_: {Path(origin).name}, line {error.lineno}: {error.msg}"
        ) from None
    except (OSError, UnicodeDecodeError):
        raise Undecided from None


def _check_source(key: str, component: Component) -> None:
    module, _, name = component.target.rpartition(".")
    tree = _parse(key, module)
    if key == "dataset":
        samples = samples_of(name, tree, component.arguments)
        if samples is not None:
            samples_are(component, samples)
    given = OPTIMIZER_GIVEN if key == "optimizer" else ()
    check_call(key, component.target, name, tree, component.arguments, given)
    if key == "optimizer":
        raise Undecided  # only the import tells whether it takes parameters


def _check_by_import(asked: Sequence[_Asked]) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p or "." for p in sys.path)}
    told = json.dumps([[key, to_plain(component), typed] for key, component, typed in asked])
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "scalewise.sweep.own_code"],
            input=told,
            env=environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=_IMPORT_S,
        )
    except subprocess.TimeoutExpired:
        return
    lines = done.stdout.splitlines()
    if done.returncode == 2 and lines:
        raise ConfigError(lines[-1])


def main() -> int:
    """Import each component of standard input and bind its arguments; 2 and a line if one fails."""
    for key, plain, typed in json.load(sys.stdin):
        component = build(Component, plain)
        try:
            _look(key, component, typed)
        except ConfigError as error:
            sys.stdout.write(f"\n{error}\n")
            return 2
    return 0


def _look(key: str, component: Component, typed: str) -> None:
    try:
        target = load_target(key, component)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:  # whatever the user's module raises, it is his to mend
        text = in_one_line(error, with_class=True)
        raise ConfigError(
            f"{key}._target_: importing {component.target.rpartition('.')[0]} failed: {text}"
        ) from error
    if not callable(target):
        raise ConfigError(
            f"{key}._target_: found {component.target}, which is no class; allowed: a class"
        )
    if typed:
        refuse_beside_lightning(component, target, typed)
    if key == "optimizer":
        check_optimizer(component, target)
    bind(key, component, target, OPTIMIZER_GIVEN if key == "optimizer" else ())


if __name__ == "__main__":
    sys.exit(main())
