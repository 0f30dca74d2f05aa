"""Unions of grids, and what the rules leave of them."""

from __future__ import annotations

from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from scalewise.config import ConfigError
from scalewise.sweep import combinations, rules
from scalewise.sweep.grid import Rules, check_size


def jobs(
    typed: str = "",
    grids: tuple[str, ...] = (),
    params: dict[str, object] | None = None,
    **given: Any,
) -> list[str]:
    rule = rules(given.get("exclude"), given.get("only"), given.get("allow"))
    made = combinations(grids, params or {}, typed.split(), rule, OverridesParser.create())
    return [" ".join(job) for job in made]


def test_without_a_grid_it_is_every_combination() -> None:
    assert jobs("a=1,2 b=x,y") == ["a=1 b=x", "a=1 b=y", "a=2 b=x", "a=2 b=y"]
    assert jobs("a=1") == ["a=1"]
    assert jobs() == [""]


def test_grids_are_put_one_after_the_other() -> None:
    assert jobs(grids=("m=medium b=8,16", "m=large b=4")) == [
        "m=medium b=8",
        "m=medium b=16",
        "m=large b=4",
    ]


def test_what_two_grids_share_is_there_once() -> None:
    assert jobs(grids=("a=1,2", "a=2,3")) == ["a=1", "a=2", "a=3"]


def test_the_command_line_has_the_last_word_and_adds_its_own() -> None:
    made = jobs("b=2 seed=1,2", grids=("m=medium b=8,16", "m=large b=4"))
    assert made == [
        "m=medium b=2 seed=1",
        "m=medium b=2 seed=2",
        "m=large b=2 seed=1",
        "m=large b=2 seed=2",
    ]


def test_params_stand_under_both() -> None:
    assert jobs("c=3", grids=("b=2",), params={"a": "1,2", "b": 9, "c": 9}) == [
        "a=1 b=2 c=3",
        "a=2 b=2 c=3",
    ]


def test_exclude_drops_what_matches_all_of_a_rule() -> None:
    made = jobs("m=medium,large s=single,ddp", exclude=["m=large s=ddp"])
    assert made == ["m=medium s=single", "m=medium s=ddp", "m=large s=single"]
    assert jobs("m=a1,a2,b1,c1", exclude=["m=a*,b1"]) == ["m=c1"]


def test_only_keeps_what_matches_any_rule() -> None:
    made = jobs("m=medium,large s=single,ddp", only=["m=large", "s=single"])
    assert made == ["m=medium s=single", "m=large s=single", "m=large s=ddp"]


def test_an_option_is_allowed_with_what_it_needs() -> None:
    made = jobs("e=eager,graph p=fp32,fp16", allow=["e=graph with p=fp32"])
    assert made == ["e=eager p=fp32", "e=eager p=fp16", "e=graph p=fp32"]


def test_a_key_of_one_grid_may_be_named_in_a_rule() -> None:
    made = jobs(grids=("m=a x=1,2", "m=b"), exclude=["x=2"])
    assert made == ["m=a x=1", "m=b"]


def test_what_a_rule_forbids_is_not_multiplied_out(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    original = Rules.forbid

    def counting(self: Rules, *given: Any) -> bool:
        nonlocal asked
        asked += 1
        return original(self, *given)

    monkeypatch.setattr(Rules, "forbid", counting)
    # Ten values for each of eight keys are a hundred million combinations.
    keys = " ".join(f"k{n}=0,1,2,3,4,5,6,7,8,9" for n in range(8))
    made = jobs(keys, only=[" ".join(f"k{n}=7" for n in range(8))])
    assert len(made) == 1
    assert asked < 100


class TestWrongRules:
    def test_a_key_that_nothing_sets(self) -> None:
        with pytest.raises(ConfigError, match=r"exclude 'n=1' names n, which .*\(set here: m\)$"):
            jobs("m=1,2", exclude=["n=1"])

    def test_a_value_that_no_cell_has(self) -> None:
        with pytest.raises(
            ConfigError, match=r"'m=larg' names m=larg, which no cell has; .*: large"
        ):
            jobs("m=large,medium", exclude=["m=larg"])

    def test_a_dependency_without_its_word(self) -> None:
        with pytest.raises(
            ConfigError, match=r"^hydra\.sweeper\.allow: found 'm=1 n=2'; allowed: O"
        ):
            jobs("m=1 n=2", allow=["m=1 n=2"])

    @pytest.mark.parametrize("given", [5, [7], {"a": 1}])
    def test_not_a_list_of_texts(self, given: Any) -> None:
        with pytest.raises(ConfigError, match=r"^hydra\.sweeper\.only: found .*allowed: a list of"):
            jobs("m=1", only=given)

    def test_one_text_will_do(self) -> None:
        assert jobs("m=1,2", exclude="m=1") == ["m=2"]

    def test_nothing_left(self) -> None:
        with pytest.raises(ConfigError, match="leave nothing to run"):
            jobs("m=1,2", exclude=["m=*"])

    @pytest.mark.parametrize("text", ["m", "m=", "=1", ""])
    def test_not_a_rule(self, text: str) -> None:
        with pytest.raises(ConfigError, match=r"^hydra\.sweeper\.only: found .*allowed: KEY=VALUE"):
            jobs("m=1", only=[text])

    def test_a_range_to_search_in(self) -> None:
        with pytest.raises(ConfigError, match=r"^lr: found a range to search in; allowed: values"):
            jobs("lr=interval(0,1)")


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("a=range(0,100000000)", r"found more cells \(a=range\(0,100000000,1\)\)"),
        ("a=range(0,1,1e-9)", r"found more cells \(a=range\(0,1,1e-09\)\)"),
        ("a=shuffle(range(0,100000000))", "found more cells"),
        ("a=range(0,9000) b=range(0,9000)", r"found 81,000,000 cells \(9000 of a, 9000 of b\)"),
    ],
)
def test_more_than_a_sweep_may_have_is_refused_before_it_is_multiplied_out(
    typed: str, found: str
) -> None:
    with pytest.raises(
        ConfigError, match=rf"^sweep\.max_cells: {found}.*; allowed: at most 100,000"
    ):
        jobs(typed)


def test_a_value_given_twice_makes_two_jobs_for_the_launcher_to_fold() -> None:
    assert jobs("a=1,1,2") == ["a=1", "a=1", "a=2"]
    assert jobs(grids=("a=1,2,2", "a=2,3")) == ["a=1", "a=2", "a=2", "a=3"]


def test_what_another_sweeper_would_write_down_is_counted_first() -> None:
    parser = OverridesParser.create()
    check_size({"a": "1,2"}, ["b=range(0,5)", "c=3"], parser, 10)
    with pytest.raises(ConfigError, match=r"found 10 cells \(2 of a, 5 of b\); allowed: at most 9"):
        check_size({"a": "1,2"}, ["b=range(0,5)", "c=3"], parser, 9)
    with pytest.raises(ConfigError, match="found more cells"):
        check_size({}, ["b=range(0,100000000)"], parser, 100_000)


def test_only_what_the_rules_keep_counts_against_the_limit() -> None:
    parser = OverridesParser.create()
    few = rules(None, ["a=7"], None)
    typed = ["a=range(0,9000)", "b=range(0,9000)"]
    assert len(combinations((), {}, typed, few, parser, 9000)) == 9000
    with pytest.raises(ConfigError, match="found more cells; allowed: at most 8,999"):
        combinations((), {}, typed, few, parser, 8999)
    assert len(combinations((), {}, ["a=range(0,5)"], Rules(), parser, 5)) == 5
    with pytest.raises(ConfigError, match="found 5 cells"):
        combinations((), {}, ["a=range(0,5)"], Rules(), parser, 4)


@pytest.mark.parametrize("without_end", ["range(0,inf)", "range(0,10,0)", "range(0.0,1.0,0.0)"])
def test_a_range_without_end_is_refused(without_end: str) -> None:
    with pytest.raises(ConfigError, match=r"^a: found range\(.*\); allowed: finite numbers"):
        jobs(f"a={without_end}")


@pytest.mark.parametrize("empty", ["range(5,1)", "range(1.0,0.5,0.1)"])
def test_a_choice_of_nothing_is_refused(empty: str) -> None:
    with pytest.raises(ConfigError, match=r"^a: found a=range.*, which has no value"):
        jobs(f"a={empty} b=1,2")
