"""Unions of grids."""

from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from scalewise.config import ConfigError
from scalewise.sweep import combinations, compose, texts


def jobs(
    typed: str = "", grids: tuple[str, ...] = (), params: dict[str, object] | None = None
) -> list[str]:
    made = combinations(grids, params or {}, typed.split(), OverridesParser.create())
    return [" ".join(job) for job in made]


@pytest.mark.parametrize(
    ("typed", "given", "made"),
    [
        ("a=1,2 b=x,y", {}, ["a=1 b=x", "a=1 b=y", "a=2 b=x", "a=2 b=y"]),
        ("a=1", {}, ["a=1"]),
        ("a=choice(1)", {}, ["a=1"]),
        ("", {}, [""]),
        ("", {"grids": ("m=a b=8,16", "m=c b=4")}, ["m=a b=8", "m=a b=16", "m=c b=4"]),
        ("", {"grids": ("a=1,2", "a=2,3")}, ["a=1", "a=2", "a=3"]),
        ("b=2 s=1,2", {"grids": ("m=a b=8,16", "m=c b=4")},
         ["m=a b=2 s=1", "m=a b=2 s=2", "m=c b=2 s=1", "m=c b=2 s=2"]),
        ("c=3", {"grids": ("b=2",), "params": {"a": "1,2", "b": 9, "c": 9}},
         ["a=1 b=2 c=3", "a=2 b=2 c=3"]),
        ("a=1,1,2", {}, ["a=1", "a=1", "a=2"]),
        ("", {"grids": ("rehearse=true a=1",)}, ["rehearse=auto a=1"]),
        ("", {"grids": ("a=1,2,2", "a=2,3")}, ["a=1", "a=2", "a=2", "a=3"]),
    ],
)  # fmt: skip
def test_combinations_of_grids(typed: str, given: Any, made: list[str]) -> None:
    """What grids share is there once; what one grid has twice is left to the launcher to fold."""
    assert jobs(typed, **given) == made


def test_as_many_as_a_sweep_may_have_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compose, "MAX_CELLS", 6)
    assert len(jobs("a=range(0,6)")) == len(jobs("a=1,2 b=1,2,3")) == 6


@pytest.mark.parametrize("given", [5, [7], {"a": 1}])
def test_grids_are_texts(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"^hydra\.sweeper\.grids: found .*allowed: a list of"):
        texts(given)


@pytest.mark.parametrize(
    ("typed", "refused"),
    [
        ("lr=interval(0,1)", "lr: found a range to search in; allowed: values"),
        ("a=range(0,9000) b=range(0,9000)", "sweep: .*; allowed: at most 100,000"),
        ("a=range(0,100000000)", "a: found 100001 values or more .*; allowed: 1 to 100,000"),
        ("a=range(0,1,1e-9)", "a: found 100001 values or more "),
        ("a=range(0,inf)", "a: found 100001 values or more "),
        ("a=range(5,1) b=1,2", "a: found 0 values "),
    ],
)
def test_more_than_a_sweep_may_have_is_refused_unmultiplied(typed: str, refused: str) -> None:
    with pytest.raises(ConfigError, match=f"^{refused}"):
        jobs(typed)
