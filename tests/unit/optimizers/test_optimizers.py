"""Our builders hand over what was asked for to torch's own optimizers."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from scalewise.optimizers.standard import JoinedOptimizer, adam, adamw, muon, sgd
from scalewise.train.recording.summary import optimizer_state_bytes


def test_arguments_arrive() -> None:
    group = adamw(
        nn.Linear(2, 2).parameters(), lr=0.5, betas=[0.8, 0.9], weight_decay=0.3, amsgrad=True
    ).param_groups[0]
    assert (group["lr"], group["betas"], group["weight_decay"]) == (0.5, (0.8, 0.9), 0.3)
    assert group["amsgrad"] is True


@pytest.mark.parametrize("build", [sgd, adam, adamw])
def test_fused_where_torch_can_and_as_asked(build: Any) -> None:
    def fused(**arguments: Any) -> bool:
        return bool(build(nn.Linear(2, 2).parameters(), **arguments).param_groups[0]["fused"])

    assert fused()
    assert not fused(fused=False)


def small_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.ModuleDict({"embedding": nn.Linear(4, 6), "hidden": nn.Linear(6, 6)})


def one_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    torch.stack([p.square().sum() for p in model.parameters()]).sum().backward()
    optimizer.step()


def test_state_bytes_are_those_of_every_buffer_and_counter() -> None:
    model = nn.Linear(10, 10, bias=False)
    optimizer = adamw(model.parameters())
    assert optimizer_state_bytes([optimizer]) == 0
    one_step(model, optimizer)
    assert optimizer_state_bytes([optimizer]) == 2 * 100 * 4 + 4  # and the step counter
    assert optimizer_state_bytes([]) is None


class TestMuon:
    def test_hidden_matrices_go_to_muon_and_the_rest_to_adamw_and_all_move(self) -> None:
        model = small_network()
        before = [p.detach().clone() for p in model.parameters()]
        optimizer = muon(model.named_parameters())
        names = [group["param_names"] for group in optimizer.param_groups]
        assert names == [["hidden.weight"], ["embedding.weight", "embedding.bias", "hidden.bias"]]
        one_step(model, optimizer)
        after = list(model.parameters())
        assert not any(torch.equal(a, b) for a, b in zip(before, after, strict=True))
        # One buffer for the hidden matrix, two and a counter for each of the rest.
        assert optimizer_state_bytes([optimizer]) == 4 * (36 + 2 * (24 + 6 + 6) + 3)

    def test_a_schedule_reaches_both_parts(self) -> None:
        optimizer = muon(small_network().named_parameters(), lr=0.2, adamw_lr=0.1)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
        one_step(small_network(), optimizer)
        schedule.step()
        assert isinstance(optimizer, JoinedOptimizer)
        assert [part.param_groups[0]["lr"] for part in optimizer._parts] == [0.1, 0.05]

    def test_it_continues_where_it_was_saved(self) -> None:
        model = small_network()
        optimizer = muon(model.named_parameters())
        one_step(model, optimizer)
        saved, weights = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(model.state_dict())
        one_step(model, optimizer)

        resumed = small_network()
        resumed.load_state_dict(weights)
        second = muon(resumed.named_parameters())
        second.load_state_dict(saved)
        one_step(resumed, second)
        for a, b in zip(model.parameters(), resumed.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)

    def test_parameters_without_names_are_refused(self) -> None:
        with pytest.raises(ValueError, match=r"^params: found parameters without names; allowed"):
            muon(small_network().parameters())
