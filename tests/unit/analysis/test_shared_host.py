"""Repeats with neighbours on the host: set aside one by one, and never mixed with the others."""

from dataclasses import replace
from pathlib import Path

from fakes.recorded import DDP, DDP_MS, SINGLE_MS, Spec, analysed, repeats, write_sweep
from scalewise.analysis import load_sweep, reach_verdicts
from scalewise.report import results_json

STEADY = [1.0, 1.01, 0.99, 1.005, 0.995]
IDEAL = sum(SINGLE_MS.values()) / sum(DDP_MS.values())


def with_neighbours(specs: list[Spec], *which: int) -> list[Spec]:
    """Those runs meet a neighbour that makes them five times slower."""
    return [
        replace(s, co_tenants=("pid 4711 (python)",), run_factor=5.0) if i in which else s
        for i, s in enumerate(specs)
    ]


def test_one_repeat_with_a_neighbour_is_set_aside_and_the_others_are_compared(
    tmp_path: Path,
) -> None:
    found = analysed(tmp_path, *repeats(Spec(), STEADY), *with_neighbours(repeats(DDP, STEADY), 3))
    (pair,) = found.pairs
    assert found.refused == ()
    assert (pair.speedup.n, pair.verdict) == ((4, 4), "pays")
    assert abs(pair.speedup.value / IDEAL - 1) < 0.01
    assert (len(pair.multi.runs), len(pair.multi.set_aside)) == (4, 1)
    (line,) = [one for one in found.remarks if one.code == "set_aside"]
    assert line.about == pair.multi.config_id
    assert line.figures == {
        "count": 1, "repeats": 5,
        "reasons": "008-large-ddp-r3 shared the host with pid 4711 (python)",
    }  # fmt: skip
    assert '"reason": "shared the host with pid 4711 (python)"' in results_json(found)


def test_too_few_repeats_left_are_no_comparison(tmp_path: Path) -> None:
    specs = with_neighbours(repeats(DDP, STEADY[:2]), 1)
    found = analysed(tmp_path, *repeats(Spec(), STEADY), *specs)
    (refused,) = found.refused
    assert found.pairs == ()
    assert refused.reason.startswith("1 of your 2 runs was disturbed: run 2 more on a quiet host")
    assert "shared the host with pid 4711" in refused.reason


def test_where_all_shared_the_host_a_run_that_had_it_alone_is_the_odd_one(tmp_path: Path) -> None:
    single = with_neighbours(repeats(Spec(), STEADY), 0, 1, 2, 3)
    multi = with_neighbours(repeats(DDP, STEADY), 0, 1, 2, 3, 4)
    (pair,) = analysed(tmp_path, *single, *multi).pairs
    assert pair.speedup.n == (4, 4)
    assert [one.reason for one in pair.single.set_aside] == [
        "had the host alone, unlike the repeats that are compared"
    ]


def test_a_neighbour_that_stays_does_not_add_repeats_for_ever(tmp_path: Path) -> None:
    auto = {"repeats": "auto", "max_repeats": 8, "precision_percent": 2}
    alone = with_neighbours(repeats(replace(DDP, config=auto), [1.0, 1.3] * 4), *range(3, 8))
    (group,) = reach_verdicts(load_sweep(write_sweep(tmp_path, alone))).repeats
    assert (group.wanted, group.because) == (None, "cap")
    assert "5 runs of large ddp x2 are set aside: run it again on a quiet host" in group.reason
