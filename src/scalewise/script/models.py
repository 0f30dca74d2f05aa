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
    """Stands before each call of a model, and before what ``model.compile()`` makes of it.

    A registered forward hook would be compiled too, and of any model it sends each call torch's
    longer way. Nothing is written into the model itself: what copies, saves or scripts its
    attributes finds it as it is, and a copy runs its own parameters.
    """

    def __init__(self, model: nn.Module, on_forward: OnForward) -> None:
        self._model, self._kind, self._on_forward = model, type(model), on_forward
        self.was_called = False
        _hooks[id(model)] = self
        setattr(self._kind, _PLACE, _Place())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.was_called = True
        model = self._model
        self._on_forward(model, args, kwargs)
        return (model.__dict__.get(_PLACE) or model._call_impl)(*args, **kwargs)

    def remove(self) -> None:
        if _hooks.get(id(self._model)) is self:
            del _hooks[id(self._model)]
        if all(hook._kind is not self._kind for hook in _hooks.values()):
            setattr(self._kind, _PLACE, None)  # as torch has it


_hooks: dict[int, Hook] = {}  # by the ``id`` of the model
_find, _is_compiling = _hooks.get, torch.compiler.is_dynamo_compiling  # torch asks twice a call


class _Place:
    """In the class of a watched model, where torch looks for a compiled call."""

    def __get__(self, model: nn.Module | None, kind: object = None) -> Any:
        if (hook := _find(id(model))) and not _is_compiling():  # no graph is to hold a hook
            return hook
        return None if model is None else model.__dict__.get(_PLACE)

    def __set__(self, model: nn.Module, call: Any) -> None:
        if not isinstance(call, Hook):  # put back as it was found, it would call itself
            model.__dict__[_PLACE] = call


class Models:
    """Hooks on the models, one each: nothing is added to the modules inside them."""

    def __init__(self, on_forward: OnForward) -> None:
        self._on_forward = on_forward
        self._known: set[int] = set()
        """Parameters, by ``id``, whose models were looked for."""
        self._hooks: dict[int, Hook] = {}
        self._silent: set[int] = set()  # models, by ``id``, that were never called
        self.found: list[nn.Module] = []

    def find(self, optimizer: torch.optim.Optimizer) -> None:
        """Hook the models of an optimizer, unless they are hooked already."""
        own = {id(one) for group in optimizer.param_groups for one in group["params"]}
        if own <= self._known:
            return
        self._known |= own
        self._hook_outermost()

    def look_again(self) -> None:
        """In the place of each model that was never called, hook the modules inside it.

        A class may hold two networks and call these alone; what was compiled later is hooked too.
        """
        silent = [model for model in self.found if not self._hooks[id(model)].was_called]
        self._silent |= {id(model) for model in silent}
        for model in silent:
            self.found.remove(model)
            self._hooks.pop(id(model)).remove()
            for child in model.children():
                if _holds(child, self._known):
                    self._hook(child)
        self._hook_outermost()

    def start_over(self) -> None:
        """Hook the outermost ones that were never called, too: they may be scored later."""
        self._silent.clear()
        self._hook_outermost()

    def leave(self) -> None:
        """Remove every hook."""
        for hook in self._hooks.values():
            hook.remove()

    def _hook_outermost(self) -> None:
        for model in outermost(self._known):
            if id(model) not in self._hooks and id(model) not in self._silent:
                self._hook(model)

    def _hook(self, model: nn.Module) -> None:
        self._hooks[id(model)] = Hook(model, self._on_forward)
        self.found.append(model)


def outermost(parameters: Collection[int]) -> Iterator[nn.Module]:
    """The modules of this process that hold any of these and lie within no other module.

    ``parameters`` are given by ``id``. It takes some 0.1 s.
    """
    modules = [one for one in gc.get_objects() if issubclass(type(one), nn.Module)]
    inner = {id(child) for module in modules for child in module.children()}
    for module in modules:
        if id(module) not in inner and _holds(module, parameters):
            yield module


def _holds(module: nn.Module, parameters: Collection[int]) -> bool:
    return any(id(one) in parameters for one in module.parameters())
