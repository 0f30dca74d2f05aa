"""Makes a Python process of ``scalewise run`` ready to be watched, and changes nothing else of it.

Its folder comes first on PYTHONPATH of a rank. It hands on to the sitecustomize that would have
been loaded without it. Nothing but the standard library is imported before an optimizer steps."""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import importlib.machinery
import importlib.util
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any


def hand_on() -> None:
    """Load the next ``sitecustomize`` of this interpreter in the place of this one."""
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib is slow
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != here]  # noqa: PTH100
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def keep_to_cores() -> None:
    """Bind this process to the cores of its rank, and let it answer what hangs."""
    cores = json.loads(os.environ["SCALEWISE_DEVICE"]).get("cores")
    with contextlib.suppress(OSError, ValueError):  # of a container that allows neither
        if cores:
            os.sched_setaffinity(0, cores)
        faulthandler.register(signal.SIGUSR1)


_PID = os.getpid()
"""Of this interpreter; of a fork it is another."""
_PASSES, _PASSES_S = 1_000, 60.0
"""Backward passes, and seconds, in which whoever trains by torch.optim has made a step: more are
hardly accumulated."""


class AwaitTorch:
    """Finds parts of torch as everybody else would, and changes what must tell of a script."""

    def __init__(self, changes: dict[str, Callable[[Any], None]]) -> None:
        self._changes = changes

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        change = self._changes.pop(name, None)
        if change is None:
            return None
        if not self._changes:
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_watch(module: Any) -> None:
                load(module)
                change(module)

            spec.loader.exec_module = load_and_watch  # type: ignore[method-assign]
        return spec


def await_first_step(_optim: object) -> None:
    """Begin to record when an optimizer has stepped: only a process that trains takes a place."""
    import multiprocessing
    import traceback

    from torch import autograd
    from torch.optim import optimizer as optim

    inner, passes, began = autograd.backward, itertools.count(), time.monotonic()
    steps: list[int] = []

    def in_child() -> bool:
        return multiprocessing.parent_process() is not None or os.getpid() != _PID

    @functools.wraps(inner)
    def backward(*args: Any, **kwargs: Any) -> None:
        many = next(passes) > _PASSES and time.monotonic() - began > _PASSES_S
        if many and not steps and not in_child():  # whose gradients its parent may step on
            raise SystemExit(
                f"scalewise run: {_PASSES:,} backward passes and no step of an optimizer of "
                "torch.optim; allowed: a script that trains with one"
            )
        inner(*args, **kwargs)

    def is_nested() -> bool:
        """Whether a hook of an outer step makes this one: the outer one walks all hooks by then."""
        step, *outer = (frame.f_code for frame, _ in traceback.walk_stack(sys._getframe(2)))
        return step in outer

    def begin(optimizer: Any, args: object, kwargs: object) -> None:
        if is_nested():
            return
        hook.remove()
        last.remove()
        steps.append(1)
        if autograd.backward is backward:
            autograd.backward = inner
        try:
            from scalewise.script import begin
        except ModuleNotFoundError as missing:
            raise SystemExit(
                f"scalewise run: {sys.executable} cannot import {missing.name}; allowed: the "
                "Python that scalewise is installed for"
            ) from None
        begin(optimizer, in_child=in_child())

    hook = optim.register_optimizer_step_post_hook(begin)
    # Torch walks the hooks while this one changes them: behind those of the script none is lost.
    hooks: Any = hook.hooks_dict_ref()
    last = optim.register_optimizer_step_pre_hook(
        lambda *_: None if is_nested() else hooks.update({hook.id: hooks.pop(hook.id, begin)})
    )
    autograd.backward = backward


def rehearse_group(folder: str, dist: Any) -> None:
    """Put the group of a rehearsal in the place of the one that a script makes."""
    inner = dist.init_process_group

    @functools.wraps(inner)
    def init_process_group(*args: Any, **kwargs: Any) -> None:
        if args[:1] == ("rehearsal",):  # what was put there
            inner(*args, **kwargs)
            return
        import inspect

        from scalewise.script import join_rehearsal

        asked = inspect.signature(inner).bind(*args, **kwargs).arguments
        join_rehearsal(folder, asked.get("rank", -1), asked.get("world_size", -1))

    def refuse(*_: object, **__: object) -> None:
        raise SystemExit(
            "scalewise run --rehearse: found a further process group; allowed: the one of all ranks"
        )

    dist.init_process_group, dist.new_group, dist.split_group = init_process_group, refuse, refuse


if "SCALEWISE_SCRIPT" in os.environ:
    keep_to_cores()
    _place = json.loads(os.environ["SCALEWISE_SCRIPT"])
    _changes: dict[str, Callable[[Any], None]] = {"torch.optim": await_first_step}
    if _place["rehearsed"]:
        _changes["torch.distributed"] = functools.partial(rehearse_group, _place["folder"])
    sys.meta_path.insert(0, AwaitTorch(_changes))
hand_on()
