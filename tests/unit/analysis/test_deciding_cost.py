"""What deciding costs, by a small seeded simulation, and that it simulates what is shipped."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).resolve().parents[3] / "benchmarks"))

import deciding_cost

from scalewise.analysis.decisions import stop_or_go_on
from scalewise.analysis.statistics import PRECISION, Adaptive, estimate_at
from scalewise.analysis.verdict import judge

WORDS = ["does not pay", "pays", "undecided"]


@pytest.mark.parametrize("noise", ["symmetric", "skewed", "drift", "session"])
@pytest.mark.parametrize("cv", [0.005, 0.05])
def test_the_verdicts_of_50_repeats_take_a_tenth_of_their_device_time(
    noise: str, cv: float
) -> None:
    found = deciding_cost.over_all(noise, cv, sweeps=100, seed=2)
    assert found.same_where_decided >= 0.99
    assert found.contradicted <= 0.002
    assert found.device_time <= 0.10


@pytest.mark.parametrize("devices", [2, 4])
def test_the_simulated_looks_are_the_shipped_ones(
    devices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
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
            because, _ = stop_or_go_on(judgement.verdict, speedup.interval, runs, asked)
            assert (because is not None) == (looked.stop[row, 0] == i)
            if because is not None:
                break
