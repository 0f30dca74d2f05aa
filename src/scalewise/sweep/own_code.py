"""A user's own classes, imported and looked at by one short-lived process before any cell starts.

The sweep itself stays free of whatever such an import does, and of a crash in it.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from scalewise.components import OPTIMIZER_GIVEN, Component, bind, check_optimizer, load_target
from scalewise.errors import ConfigError, in_one_line
from scalewise.validation import to_plain

if TYPE_CHECKING:
    from scalewise.sweep.plan import Request

_Asked = tuple[str, Component, str]
"""Group, what it names, and what was typed of an optimizer beside a model."""
_TIMEOUT_S = 120.0
_sound: set[str] = set()
"""Classes that took arguments of these names: a sweeper that asks in batches asks once."""


def check_own_code(requests: Iterable[Request]) -> None:
    """Raises :class:`ConfigError` for the first class or argument that will not do."""
    asked: dict[str, _Asked] = {}
    for one in requests:
        for key in ("model", "dataset", "optimizer"):
            component: Component = getattr(one.cell, key)
            typed = _typed_optimizer(one.overrides) if key == "model" else ""
            new = (key, component, typed)
            if not component.target.startswith("scalewise.") and _call(new) not in _sound:
                asked.setdefault(f"{key} {component!r} {bool(typed)}", new)
    if asked:
        _ask(list(asked.values()))
        _sound.update(map(_call, asked.values()))


def _call(asked: _Asked) -> str:
    key, component, typed = asked
    return f"{key} {component.target} {sorted(component.arguments)} {bool(typed)}"


def _typed_optimizer(overrides: Iterable[str]) -> str:
    """The first override that chooses or sets an optimizer; empty without one."""
    for override in overrides:
        key = override.partition("=")[0].lstrip("+~")
        if key == "optimizer" or key.startswith("optimizer."):
            return override
    return ""


def _ask(asked: Sequence[_Asked]) -> None:
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "scalewise.sweep.own_code"],
            input=json.dumps(to_plain(asked)),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p or "." for p in sys.path)},
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise _unanswered(asked, f"took more than {_TIMEOUT_S:g} s") from None
    if not done.stdout:
        end = done.returncode
        how = f"exit status {end}" if end >= 0 else f"signal {-end}"
        raise _unanswered(asked, f"ended the process that tried it ({how})")
    error = json.loads(done.stdout)["error"]
    if error is not None:
        raise ConfigError(error)


def _unanswered(asked: Sequence[_Asked], what: str) -> ConfigError:
    keys = ", ".join(dict.fromkeys(f"{key}._target_" for key, _, _ in asked))
    modules = ", ".join(dict.fromkeys(c.target.rpartition(".")[0] for _, c, _ in asked))
    return ConfigError(
        f"{keys}: importing {modules} {what}; allowed: modules that can be imported without a "
        f"cell; python -X faulthandler -c 'import {modules}' shows where it ends"
    )


def main() -> None:
    """Look at each component of standard input; the first error, or null, as JSON."""
    with os.fdopen(os.dup(1), "w") as answer:
        os.dup2(2, 1)  # what the user's modules print is no answer
        asked = [(key, Component(**plain), typed) for key, plain, typed in json.load(sys.stdin)]
        json.dump({"error": next(filter(None, map(_error_of, asked)), None)}, answer)


def _error_of(asked: _Asked) -> str | None:
    key, component, _ = asked
    try:
        _look(*asked)
    except ConfigError as error:
        return str(error)
    except (Exception, SystemExit) as error:  # whatever the user's module raises, it is his to mend
        why = in_one_line(error, with_class=True)
        return f"{key}._target_: importing {component.target.rpartition('.')[0]} failed: {why}"
    return None


def _look(key: str, component: Component, typed: str) -> None:
    target, name = load_target(key, component), component.target
    if not callable(target):
        raise ConfigError(f"{key}._target_: found {name}, which is no class; allowed: a class")
    if key == "model":
        _check_lightning(component, target, typed)
    if key == "optimizer":
        check_optimizer(component, target)
    bind(key, component, target, OPTIMIZER_GIVEN if key == "optimizer" else ())


def _check_lightning(component: Component, target: Any, typed: str) -> None:
    lightning = sys.modules.get("pytorch_lightning")  # no class of it was made without importing it
    if lightning is None or not inspect.isclass(target):
        return
    if not issubclass(target, lightning.LightningModule):
        return
    for method in ("training_step", "configure_optimizers"):
        if getattr(target, method) is getattr(lightning.LightningModule, method):
            raise ConfigError(
                f"model._target_: found {component.target}, a LightningModule without {method}; "
                "allowed: one that has it, or an nn.Module with loss(output, target)"
            )
    if typed:
        raise ConfigError(
            f"optimizer: found {typed} beside model._target_={component.target}, a LightningModule,"
            " which builds its own; allowed: nothing of optimizer; leave it out, or give the class "
            "an argument for it: model.KEY=VALUE"
        )


if __name__ == "__main__":
    main()
