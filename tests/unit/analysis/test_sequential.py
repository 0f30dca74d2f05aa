"""The stopping rule: what it answers, and by a small seeded simulation, how often it is wrong."""

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).resolve().parents[3] / "benchmarks"))

import deciding_cost
import interval_coverage as benchmark

from fakes.recorded import DDP, DDP_MS, STEADY, Spec, crowd, edit_ranks, repeats, swept, write_sweep
from scalewise.analysis import Repeats, analyse, load_sweep, statistics
from scalewise.analysis.decisions import reason_to_stop
from scalewise.analysis.statistics import CAP, PRECISION, Adaptive, estimate_at, estimate_ratio
from scalewise.analysis.verdict import judge, more_runs
from scalewise.records import FRESH_START, UNCOUNTED

WORDS = ["does not pay", "pays", "undecided"]
"""Verdicts, as the simulations number them."""


def by_round(values: Sequence[float]) -> dict[int, float]:
    return dict(enumerate(values))


def test_the_simulated_rule_is_the_shipped_one() -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        single, multi = rng.normal(0, 0.1, 5), rng.normal(0.15, 0.1, 5)
        samples = [np.exp(side).tolist() for side in (multi, single)]
        pairs = [by_round(side) for side in samples]
        for twin, sides in ((benchmark.paired, pairs), (benchmark.welch, samples)):
            low, high = twin(single[None], multi[None], 1 - statistics.look_confidence())
            interval = estimate_at(*sides).interval
            assert np.exp([low[0], high[0]]) == pytest.approx([interval.low, interval.high])
            (verdict,) = benchmark.verdicts(*twin(single[None], multi[None], 0.05))
            assert judge(estimate_ratio(*sides), benchmark.DEVICES).verdict == WORDS[verdict]


@pytest.mark.parametrize("noise", ["symmetric", "skewed", "outliers", "drift", "session"])
@pytest.mark.parametrize("cv", [0.02, 0.2])
def test_goals_hold_on_a_small_simulation(noise: str, cv: float) -> None:
    wide, near, _, same = benchmark.stratum(noise, cv, comparisons=600, seed=1, cap=50)
    # Limits are the goals, widened by two standard errors of 600 comparisons.
    assert wide.same_as_fixed >= 0.98 - 0.012
    assert wide.runs <= 0.40 * 50  # the goal of 25 % is a mean over all CVs
    assert near.coverage >= 0.94 - 0.02
    assert near.wrong <= 0.025 + 0.013
    assert same.different <= 0.05 + 0.018
    _, near, edge, _ = benchmark.stratum(noise, cv, comparisons=600, seed=1)
    assert near.coverage >= 0.95 - 0.02
    assert edge.coverage >= 0.93 - 0.02


@pytest.mark.parametrize("noise", ["symmetric", "skewed", "drift", "session"])
@pytest.mark.parametrize("runs", [3, 8, 20])
def test_what_is_printed_of_few_rounds_covers_what_it_says(noise: str, runs: int) -> None:
    found = benchmark.fixed_runs(noise, 0.05, runs, comparisons=2000, seed=2)
    assert found.coverage >= 0.93 - 0.011
    assert found.wrong <= 0.01


@pytest.mark.parametrize("cap", [None, CAP])
def test_so_many_more_runs_are_needed_as_the_interval_needs(cap: int | None) -> None:
    """Runs of the same scatter about the same point decide with so many more, and no fewer."""
    ratio = estimate_ratio(by_round(of_scatter(1.2, 0.12, 5)), by_round([100.0] * 5))
    more = more_runs(ratio, 1.1, cap)
    assert more > 1
    for runs, decided in ((5 + more, True), (5 + more - 1, False)):
        sides = by_round(of_scatter(1.2, 0.12, runs)), by_round([100.0] * runs)
        found = estimate_ratio(*sides) if cap is None else estimate_at(*sides)
        assert (found.interval.low > 1.1) == decided


def of_scatter(ratio: float, sd: float, n: int) -> list[float]:
    """Rates about ``100 * ratio`` whose logarithms have this sample standard deviation."""
    logs = np.linspace(-1, 1, n)
    return [float(v) for v in 100 * ratio * np.exp(sd * logs / logs.std(ddof=1))]


def test_more_runs_than_anybody_waits_for_are_not_counted() -> None:
    noisy, single = by_round([105.0, 190.0, 60.0, 150.0, 80.0]), by_round([100.0] * 5)
    ratio = estimate_ratio(noisy, single)
    assert more_runs(ratio, 1.1) is None
    assert judge(ratio, 2).more == "more than 50 more runs of each"
    assert (
        judge(estimate_at(noisy, single), 2, cap=8).more == "more than the 8 runs allowed of each"
    )
    assert judge(ratio, 2, cap=5).more == ""


@pytest.mark.parametrize(
    ("round_s", "said"),
    [
        (None, "about 4 more runs of each"),
        (5.0, "about 4 more runs of each, 20 s"),
        (22.5, "about 4 more runs of each, 2 min"),  # from 1.5 on, as with hours
        (1350.0, "about 4 more runs of each, 2 h"),
    ],
)
def test_what_more_runs_take_is_said_in_time(round_s: float | None, said: str) -> None:
    ratio = estimate_ratio(by_round(of_scatter(1.15, 0.047, 3)), by_round([100.0] * 3))
    judgement = judge(ratio, 2, round_s=round_s)
    assert (judgement.verdict, judgement.more) == ("undecided", said)
    assert judgement.reason.endswith(f"; add repeats: {said}")


# What deciding costs, and that the simulation is of what is shipped.


@pytest.mark.parametrize("noise", ["symmetric", "skewed", "drift", "session"])
@pytest.mark.parametrize("cv", [0.005, 0.05])
def test_verdicts_of_50_repeats_take_a_tenth_of_their_device_time(noise: str, cv: float) -> None:
    found = deciding_cost.over_all(noise, cv, sweeps=100, seed=2)
    assert found.same_where_decided >= 0.99
    assert found.contradicted <= 0.002
    assert found.device_time <= 0.10


@pytest.mark.parametrize("devices", [2, 4])
def test_simulated_looks_are_the_shipped(devices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run by run, what a sweep would do with the same logarithms of samples/s."""
    rng, cap = np.random.default_rng(5), 12
    single, multi = rng.normal(0, 0.05, (20, 50)), rng.normal(0, 0.05, (20, 50))
    monkeypatch.setattr(deciding_cost, "log_rates", lambda *_: (single, multi))
    truth = 1.1 * devices / 2
    looked = deciding_cost.simulate([(devices, truth)], "symmetric", 0.05, 20, 0, cap)
    for row in range(20):
        for i, runs in enumerate(looked.looks):
            sides = (np.exp(side[row, :runs]) for side in (multi + math.log(truth), single))
            speedup = estimate_at(*(dict(enumerate(side.tolist())) for side in sides))
            judgement = judge(speedup, devices, cap=cap)
            assert WORDS[looked.found[i, row, 0]] == judgement.verdict
            asked = Adaptive(PRECISION, cap)
            because = reason_to_stop(judgement.verdict, speedup.interval, runs, asked)
            assert (because is not None) == (looked.stop[row, 0] == i)
            if because is not None:
                break


# Who needs more repeats, as the records tell it.
NOISY = [1.0, 1.5, 0.7, 1.3, 0.8]


def auto(spec: Spec, **limits: float) -> Spec:
    return replace(spec, config={"repeats": "auto", **limits})


def assessed(path: Path, *specs: Spec) -> tuple[Repeats, ...]:
    return analyse(swept(path, *specs)).repeats


@pytest.mark.parametrize(
    ("factors", "limits", "expected"),
    [
        (STEADY[:3], {}, (3, None, "verdict")),
        ([1.0], {}, (1, 3, None)),
        ([1.0, 1.0], {}, (2, 3, None)),  # however clear
        (NOISY[:3], {}, (3, 4, None)),
        (NOISY, {"max_repeats": 5}, (5, None, "cap")),
    ],
)
def test_a_pair_is_repeated_until_it_is_decided(
    tmp_path: Path, factors: list[float], limits: dict[str, float],
    expected: tuple[int, int | None, str | None],
) -> None:  # fmt: skip
    single, multi = auto(Spec(), **limits), auto(DDP, **limits)
    specs = [*repeats(single, factors), *repeats(multi, [*factors[1:], factors[0]])]
    (found,) = assessed(tmp_path, *specs)
    assert (found.runs, found.wanted, found.because) == expected
    assert {member.devices for member in found.members} == {1, 2}
    assert ("1.10x is wanted" in found.brief) == (found.because != "verdict"), "and why it is open"


def test_a_disturbed_baseline_decides_nothing_as_in_the_report(tmp_path: Path) -> None:
    """More than linear beside a crowd: the interval is narrow, and what is gained is not known."""
    fast = replace(DDP, kind="cpu", phases_ms={n: ms / 3 for n, ms in DDP_MS.items()})
    specs = [*repeats(auto(Spec(kind="cpu"))), *repeats(auto(fast), [1.0, 1.06, 0.94])]
    crowd(write_sweep(tmp_path, specs), "*-single-*")
    found = analyse(load_sweep(tmp_path))
    (pair,), (group,) = found.pairs, found.repeats
    assert (pair.verdict, (group.because, group.wanted)) == ("undecided", (None, 4))
    assert [one.code for one in pair.remarks] == ["contention"]
    assert group.brief.endswith(pair.remarks[0].brief)


@pytest.mark.parametrize("sides", ["*", "*-ddp-*", "*-ddp-r1"])
def test_where_samples_were_not_counted_no_speedup_is_told(tmp_path: Path, sides: str) -> None:
    write_sweep(tmp_path, [*repeats(auto(Spec())), *repeats(auto(DDP))])
    edit_ranks(tmp_path, lambda rank: rank["missing"].update({UNCOUNTED: "within a graph"}), sides)
    found = analyse(load_sweep(tmp_path))
    (refused,) = found.refused
    assert not found.pairs and "within a graph. Steps took" in refused.reason
    assert {(one.because, one.wanted) for one in found.repeats} == {("failures", None)}


def test_runs_that_go_on_from_one_another_make_no_pair(tmp_path: Path) -> None:
    write_sweep(tmp_path, [Spec(), DDP])
    for sides, said in (("*", ["200 steps"] * 2), ("*-ddp-*", ["200 steps", "400 steps"])):
        edit_ranks(tmp_path, lambda r, now=said[-1]: r["missing"].update({FRESH_START: now}), sides)
        found = analyse(load_sweep(tmp_path))
        assert bool(found.pairs) is (len(set(said)) == 1)
    (refused,) = found.refused
    assert refused.reason.startswith("runs begin at unlike steps: ")


def test_sides_that_count_samples_unlike_make_no_pair(tmp_path: Path) -> None:
    write_sweep(tmp_path, [Spec(), DDP])
    for sides, alike in (("*-ddp-*", False), ("*", True)):
        edit_ranks(tmp_path, lambda r: r["missing"].update({"sample count": "gave 64"}), sides)
        assert bool(analyse(load_sweep(tmp_path)).pairs) is alike


def test_a_round_that_lost_a_half_is_no_pair_and_is_made_up_for(tmp_path: Path) -> None:
    """Round 1 failed on several devices: three runs of each are two pairs."""
    multi = [one for one in repeats(auto(DDP), STEADY[:4]) if one.repeat != 1]
    lost = replace(auto(DDP), repeat=1, outcome="failed")
    (found,) = assessed(tmp_path, *repeats(auto(Spec())), lost, *multi)
    assert (found.runs, found.wanted) == (2, 3)
    (pair,) = analyse(load_sweep(tmp_path)).pairs
    assert pair.judgement.reason.startswith(
        "speedup 1.61 on 2 devices, from 2 pairs: a verdict needs 3"
    )


def test_runs_that_fail_are_not_repeated_for_ever(tmp_path: Path) -> None:
    lost = [replace(auto(DDP), repeat=i, outcome="failed") for i in (3, 4)]
    (found,) = assessed(
        tmp_path, *repeats(auto(Spec()), NOISY[:3]), *repeats(auto(DDP), NOISY[:3][::-1]), *lost
    )
    assert (found.wanted, found.because) == (None, "failures")
    assert "out of memory" in found.reason and found.brief.endswith(found.reason)


@pytest.mark.parametrize(("outcome", "because"), [("skipped", "failures"), ("done", None)])
def test_one_device_is_not_repeated_for_partners_that_never_run(
    tmp_path: Path, outcome: str, because: str | None
) -> None:
    """Four devices were asked for, on a host that has two."""
    lost = [replace(auto(DDP), repeat=i, outcome=outcome) for i in range(3)]
    found = assessed(tmp_path, *repeats(auto(Spec()), NOISY[:3]), *lost)
    assert {one.because for one in found} == {because}


@pytest.mark.parametrize("config", [{}, {"repeats": "auto", "profile": {"window": True}}])
def test_a_fixed_number_of_repeats_and_cells_under_a_profiler_are_nobodys_business(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    both = (replace(spec, config=config) for spec in (Spec(), DDP))
    assert assessed(tmp_path, *(one for spec in both for one in repeats(spec, NOISY[:3]))) == ()


@pytest.mark.parametrize(
    ("factors", "because", "reason"),
    [
        ((1.0, 1.5, 0.9), "cap", "11,600 (2,470-54,300) samples/s"),
        ((1.0, 1.001, 0.999), "precision", "12,800 (12,727-12,874) samples/s"),
    ],
)
def test_alone_its_own_corrected_interval_ends_it(
    tmp_path: Path, factors: tuple[float, ...], because: str, reason: str
) -> None:
    (found,) = assessed(tmp_path, *repeats(auto(Spec(), max_repeats=3), factors))
    assert (found.because, found.reason) == (because, reason)
