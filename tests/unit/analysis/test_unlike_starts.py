"""Runs that were forked and runs that were started freshly: never in one mean, nor in one pair."""

from dataclasses import replace
from pathlib import Path

import pytest

from fakes.recorded import DDP, Spec, analysed, repeats

STEADY = [1.0, 1.01, 0.99, 1.005, 0.995]


def forked(specs: list[Spec]) -> list[Spec]:
    return [replace(spec, started="forked") for spec in specs]


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        (
            {"started": "fresh", "not_forked": "2 threads run"},
            "was fresh, and others were forked (2 threads run)",
        ),
        ({"started": "forked"}, "was forked, and others were fresh"),
    ],
)
def test_the_fewer_runs_of_unlike_starts_are_set_aside(
    tmp_path: Path, odd: dict[str, str], reason: str
) -> None:
    other = "fresh" if odd["started"] == "forked" else "forked"
    specs = [replace(spec, started=other) for spec in repeats(DDP, STEADY)]
    specs[2] = replace(specs[2], run_factor=3.0, **odd)
    singles = [replace(spec, started=other) for spec in repeats(Spec(), STEADY)]
    (pair,) = analysed(tmp_path, *singles, *specs).pairs
    assert [aside.reason for aside in pair.multi.set_aside] == [reason]
    assert len(pair.multi.runs) == 4


def test_forked_runs_are_not_set_against_fresh_ones(tmp_path: Path) -> None:
    found = analysed(tmp_path, *repeats(Spec(), STEADY), *forked(repeats(DDP, STEADY)))
    (refused,) = found.refused
    assert found.pairs == ()
    assert "started: " in refused.reason
