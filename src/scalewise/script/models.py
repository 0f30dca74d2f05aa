"""The models that a script trains: the outermost modules that hold what its optimizers step."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch
from torch import nn

OnForward = Callable[[nn.Module, tuple[Any, ...], Mapping[str, Any]], None]


class Hook:
    """A forward hook that stays behind where its module is copied, or saved as a whole."""

    def __init__(self, on_forward: OnForward) -> None:
        self._on_forward = on_forward
        self.was_called = False

    def __call__(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.was_called = True
        self._on_forward(model, args, kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        # The standard library's way to do nothing: what is loaded elsewhere needs no scalewise.
        return getattr, (contextlib.nullcontext(), "__exit__")


class Models:
    """Hooks on the models, one each: nothing is added to the modules inside them.

    Args:
        on_forward: called before each forward of one, on the thread that calls it.
    """

    def __init__(self, on_forward: OnForward) -> None:
        self._on_forward = on_forward
        self._known: set[int] = set()
        """Parameters, by ``id``, whose models were looked for."""
        self._hooks: dict[int, Hook] = {}
        self._removals: dict[int, Callable[[], None]] = {}
        self.found: list[nn.Module] = []

    def find(self, optimizer: torch.optim.Optimizer) -> None:
        """Hook the models of an optimizer, unless they are hooked already."""
        own = {id(one) for group in optimizer.param_groups for one in group["params"]}
        if own <= self._known:
            return
        self._known |= own
        hooked = {id(model) for model in self.found}
        for model in outermost(own):
            if id(model) not in hooked:
                self._hook(model)

    def look_inside(self) -> None:
        """In the place of each model that was never called, hook the modules inside it.

        A class may hold two networks and call these alone.
        """
        silent = [model for model in self.found if not self._hooks[id(model)].was_called]
        for model in silent:
            self.found.remove(model)
            self._removals.pop(id(model))()
            for child in model.children():
                if _holds(child, self._known):
                    self._hook(child)

    def leave(self) -> None:
        """Remove every hook."""
        for remove in self._removals.values():
            remove()
        self._removals.clear()

    def _hook(self, model: nn.Module) -> None:
        hook = self._hooks[id(model)] = Hook(self._on_forward)
        self.found.append(model)
        compiled = getattr(model, "_compiled_call_impl", None)
        if compiled is None:
            handle = model.register_forward_pre_hook(hook, prepend=True, with_kwargs=True)
            self._removals[id(model)] = handle.remove
            return

        # Of `model.compile()`: a hook would be compiled too.
        def call(*args: Any, **kwargs: Any) -> Any:
            hook(model, args, kwargs)
            return compiled(*args, **kwargs)

        def remove() -> None:
            model._compiled_call_impl = compiled

        model._compiled_call_impl = call
        self._removals[id(model)] = remove


def outermost(parameters: Collection[int]) -> Iterator[nn.Module]:
    """The modules of this process that hold any of these and lie within no other module.

    ``parameters`` are given by ``id``. It takes some 0.1 s, once a script.
    """
    modules = [one for one in gc.get_objects() if issubclass(type(one), nn.Module)]
    inner = {id(child) for module in modules for child in module.children()}
    for module in modules:
        if id(module) not in inner and _holds(module, parameters):
            yield module


def _holds(module: nn.Module, parameters: Collection[int]) -> bool:
    return any(id(one) in parameters for one in module.parameters())
