"""The models of a script are found by what its optimizers step."""

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from scalewise.script.models import Models


class Kept(nn.Linear):
    """Keeps all of itself in a copy, as a DDP does."""

    def __getstate__(self) -> dict[str, Any]:
        return dict(vars(self))


@pytest.fixture
def called() -> list[nn.Module]:
    return []


@pytest.fixture
def models(called: list[nn.Module]) -> Iterator[Models]:
    found = Models(lambda model, *_: called.append(model))
    yield found
    found.leave()


def watch(models: Models, model: nn.Module) -> None:
    models.find(torch.optim.SGD(model.parameters(), 0.1))


def test_a_model_is_told_of_once_a_call_and_whole(models: Models, called: list[nn.Module]) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    watch(models, model)
    watch(models, model)
    model(torch.ones(2, 3))
    assert called == [model]


def test_copies_and_saved_ones_tell_nobody(models: Models, called: list[nn.Module]) -> None:
    model = Kept(3, 3)
    watch(models, model)
    torn = Kept.__new__(Kept)
    torn.__dict__ = {**vars(model), "_parameters": {"weight": torch.zeros(2, 3), "bias": None}}
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torn):
        made = other(torch.ones(2, 3))
    assert made.shape == (2, 2)  # of its own parameters
    assert b"scalewise" not in pickle.dumps(model)
    assert called == []


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_watched_model_can_be_scripted_and_traced_and_what_was_read_off_it_put_back(
    models: Models, called: list[nn.Module]
) -> None:
    model, x = nn.Linear(3, 3), torch.ones(2, 3)
    watch(models, model)
    for other in (torch.jit.script(model), torch.jit.trace(model, x)):
        assert torch.equal(other(x), model(x))
    before: Any = model._compiled_call_impl
    model._compiled_call_impl = None
    model._compiled_call_impl = before
    called.clear()
    assert (model(x).shape, called) == ((2, 3), [model])


@pytest.mark.parametrize("later", [False, True])
def test_what_is_compiled_in_place_is_told_of_too_and_others_of_its_class_are_not(
    models: Models, called: list[nn.Module], later: bool
) -> None:
    model, other, x = nn.Linear(3, 3), nn.Linear(3, 3), torch.ones(2, 3)
    for one in (model, other):
        if later:
            watch(models, model)
        one._compiled_call_impl = lambda x: x + 1  # type: ignore[assignment]
    watch(models, model)
    for one in (model, other):
        assert torch.equal(one(x), x + 1)
    assert called == [model]
    models.leave()
    assert torch.equal(model(x), x + 1)
    assert vars(nn.Linear)["_compiled_call_impl"] is None


def test_one_that_is_never_called_is_looked_into(models: Models, called: list[nn.Module]) -> None:
    networks = [nn.Linear(3, 2), nn.Linear(3, 1)]  # an actor and a critic
    watch(models, nn.ModuleList(networks))
    networks[0](torch.ones(2, 3))
    assert called == []
    models.look_again()
    for network in networks:
        network(torch.ones(2, 3))
    assert called == networks
    models.look_again()
    assert models.found == networks


def test_a_wrapper_that_is_compiled_later_is_told_of_and_holds_no_hook(
    models: Models, called: list[nn.Module]
) -> None:
    model, x = nn.Sequential(nn.Linear(3, 3)), torch.ones(2, 3)
    watch(models, model)
    plain = model(x)
    compiled: Any = torch.compile(model, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), plain)
    assert called == [model]
    models.look_again()
    assert torch.equal(compiled(x), plain)
    assert called == [model, compiled]
