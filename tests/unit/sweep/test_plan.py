"""Cells: stable ids, readable names, an order that treats all configurations alike."""

from dataclasses import replace
from typing import Any

import pytest

from fakes.requests import asked
from scalewise.config import ConfigError, SweepConfig, is_shipped
from scalewise.host import wrap_command
from scalewise.sweep.plan import Request, folded, in_order, plan, wrapped


@pytest.fixture(scope="module")
def requests() -> list[Request]:
    return [asked("repeats=4", f"seed={seed}") for seed in (1, 2, 3)]


def names(cells: list[Any]) -> list[str]:
    return [cell.planned.name for cell in cells]


def test_the_same_requests_give_the_same_cells_in_any_order(requests: list[Request]) -> None:
    assert names(plan(requests, 0)) == names(plan(requests[::-1], 0))
    assert len({cell.planned.cell_id for cell in plan(requests, 0)}) == 12
    other = names(plan(requests, 1))
    assert names(plan(requests, 0)) != other and sorted(names(plan(requests, 0))) == sorted(other)


def test_a_pair_runs_side_by_side_in_every_round() -> None:
    """Single device and both of its partners, whatever runs between one workload and the next."""
    ddp = (("strategy=ddp", f"strategy.devices={n}") for n in (2, 4))
    strategies = [("strategy=single",), *ddp]
    asked_for = [asked("repeats=5", f"seed={n}", *one) for n in (1, 2, 3) for one in strategies]
    cells = plan(asked_for, 0)
    assert [c.planned.repeat for c in cells] == [repeat for repeat in range(5) for _ in range(9)]
    rounds = {tuple(c.request.workload_id for c in cells[9 * r : 9 * r + 9]) for r in range(5)}
    assert len(rounds) > 1, "every round has the same order"
    orders = set()
    for begin in range(0, len(cells), 3):
        block = cells[begin : begin + 3]
        assert len({c.request.workload_id for c in block}) == 1
        assert len({(c.planned.repeat, c.planned.config_id) for c in block}) == 3
        orders.add(tuple(c.planned.devices for c in block))
    assert len(orders) > 3, "who of a pair runs first is random too"


def test_a_round_has_its_order_whatever_ran_before_it(requests: list[Request]) -> None:
    whole = plan(requests, 0)
    assert names(in_order(whole[6:], 0)) == names(whole)[6:]


def test_what_is_asked_for_twice_is_said(requests: list[Request]) -> None:
    assert folded(requests) is None
    line = folded([*requests, asked("repeats=4", "seed=1"), asked("repeats=4", "seed=2")])
    assert line.startswith("folded: 2 of 5 configurations are the same as another that is asked ")
    assert "(seed=1)" in line
    assert line.endswith("set repeats=N")


def test_a_configuration_asked_for_twice_runs_once_with_the_most_repeats() -> None:
    cells = plan([asked("repeats=1", "sweep.timeout_s=9"), asked("repeats=3")], 0)
    assert sorted(c.planned.repeat for c in cells) == [0, 1, 2]


def test_names_say_what_runs_and_are_safe_folders() -> None:
    (cell,) = plan([asked("strategy=ddp", "strategy.devices=2", "model.name='a b/../c=d'")], 0)
    head, _, tail = cell.planned.name.rpartition("-")
    assert head == "a_b_.._c_d-tabular-ddp2-r0"
    assert cell.planned.cell_id.startswith(tail)
    assert cell.planned.devices == 2
    assert plan([asked("strategy=ddp")], 0)[0].planned.devices is None


def test_more_cells_than_allowed_are_refused_before_one_is_made() -> None:
    with pytest.raises(
        ConfigError, match=r"^sweep: found 99,999,999 cells; allowed: at most 100,000; narrow"
    ):
        plan([asked("repeats=99999999")], 0)
    with pytest.raises(ConfigError, match="found 120,000 cells"):
        plan([asked("repeats=60000", f"seed={seed}") for seed in (1, 2)], 0)
    with pytest.raises(ConfigError, match="found 100,002 cells"):
        plan([asked("repeats=2", "sweep.extend=100000")], 0, {asked().config_id: {0, 1}})


def test_placeholders_are_filled_in_and_those_of_nsys_are_left() -> None:
    template = "nsys profile -o '{folder}/rank {rank}' --tag %q{RANK} {local_rank}"
    assert wrap_command(template, 5, 1, "/a b/cell") == [
        "nsys", "profile", "-o", "/a b/cell/rank 5", "--tag", "%q{RANK}", "1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("time {rnak}", r"found the placeholder \{rnak\}.*allowed: \{rank\}"),
        ("  ", "allowed: a command"),
        ("time 'half", "No closing quotation"),
    ],
)
def test_what_cannot_run_is_refused_in_one_line(template: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SweepConfig(wrap=template)


def test_the_launchers_wrap_travels_with_the_cell() -> None:
    assert wrapped({"sweep": {"grace_s": 5}}, "time")["sweep"] == {"grace_s": 5, "wrap": "time"}
    assert wrapped({"sweep": {}}, None) == {"sweep": {}}


def test_an_option_as_it_is_shipped_counts_and_a_changed_one_does_not() -> None:
    cell = asked("model=medium", "optimizer=adam", "dataset=tabular").cell
    for key in ("model", "optimizer", "dataset"):
        component = getattr(cell, key)
        assert is_shipped(key, component)
        assert not is_shipped(key, replace(component, target="mine.Net"))
        assert not is_shipped(key, replace(component, name="unheard_of"))
        assert not is_shipped(key, replace(component, arguments={}))


@pytest.mark.parametrize(
    ("words", "by_time"),
    [
        ((), True),
        (("measure.min_time_s=4",), True),
        (("dataset.samples=80", "batch_size=80"), True),  # no more samples than there are
        (("max_steps=200",), False),
        (("max_epochs=2",), False),
        (("profile.window=true",), False),
    ],
)
def test_time_ends_a_run_unless_steps_are_asked(words: tuple[str, ...], by_time: bool) -> None:
    assert asked(*words).cell.ends_by_time == by_time


ON_TWO = ("strategy=ddp", "strategy.devices=2")


@pytest.mark.parametrize(
    ("words", "others", "runs"),
    [
        ((), ON_TWO, 3),
        ((), ("strategy=ddp",), 3),
        ((), ("batch_size=64",), 1),  # nothing is asked of a number of devices
        ((), (*ON_TWO, "seed=7"), 1),  # nor are these compared
        (("max_steps=200",), ON_TWO, 1),
        (("max_epochs=1",), ON_TWO, 1),
        (("repeats=2",), ON_TWO, 2),
        (("repeats=2", "profile.window=true"), ON_TWO, 1),  # where nothing is timed
        (("repeats=auto", "max_steps=200"), ON_TWO, 3),
        (("experiment=agnews_base",), ON_TWO, 1),
    ],
)
def test_what_compares_devices_by_time_is_repeated_until_decided(
    words: tuple[str, ...], others: tuple[str, ...], runs: int
) -> None:
    assert len(plan([asked(*words), asked(*words, *others)], 0)) == 2 * runs


def test_what_nobody_asked_for_has_a_budget() -> None:
    def budget_min(*words: str) -> float | None:
        cell = plan([asked(*words), asked(*words, *ON_TWO)], 0)[0].request
        assert cell.plain["sweep"]["budget_min"] == cell.cell.sweep.budget_min
        return cell.cell.sweep.budget_min

    assert (budget_min(), budget_min("experiment=matrix_medium")) == (10, 5)
    assert budget_min("sweep.budget_min=2") == 2
    assert budget_min("repeats=auto") is None
    assert budget_min("repeats=auto", "sweep.budget_min=2") == 2
