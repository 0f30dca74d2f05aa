"""The models that a script trains: the outermost modules that hold what its optimizers step."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch
from torch import nn

_PLACE = "_compiled_call_impl"
OnForward = Callable[[nn.Module, tuple[Any, ...], Mapping[str, Any]], None]


class Hook:
    """Stands before each call of a model; stays behind where that is copied, or saved as a whole.

    It takes the place of what ``model.compile()`` made, if anything did. A registered forward hook
    would be compiled too, and of any model it sends each call torch's longer way.
    """

    def __init__(self, model: nn.Module, on_forward: OnForward) -> None:
        self._model, self._on_forward = model, on_forward
        self._compiled = model.__dict__.get(_PLACE)
        self._call = self._compiled or model._call_impl
        self.was_called = False
        model.__dict__[_PLACE] = self  # a wrapper may hand on what is set by name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.was_called = True
        self._on_forward(self._model, args, kwargs)
        return self._call(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()  # nothing stands there in a copy

    def remove(self) -> None:
        if self._model.__dict__.get(_PLACE) is self:
            self._model.__dict__[_PLACE] = self._compiled


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
            self._hooks.pop(id(model)).remove()
            for child in model.children():
                if _holds(child, self._known):
                    self._hook(child)

    def leave(self) -> None:
        """Remove every hook."""
        for hook in self._hooks.values():
            hook.remove()

    def _hook(self, model: nn.Module) -> None:
        self._hooks[id(model)] = Hook(model, self._on_forward)
        self.found.append(model)


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
