"""The speedup by median steps, beside the one that long steps have a part in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fakes.recorded import DDP, Spec, repeats, write_sweep
from scalewise.analysis import Configuration, analyse, load_sweep
from scalewise.analysis.scaling import TypicalSpeedup, pair_all
from scalewise.analysis.steps import StepTimes


def configurations(path: Path, scaling: str = "strong") -> tuple[Configuration, ...]:
    sides = (replace(side, scaling=scaling) for side in (Spec(), DDP))
    sweep = write_sweep(path, [s for one in sides for s in repeats(one, [1.0, 1.01])])
    return analyse(load_sweep(sweep)).configurations


def with_median(config: Configuration, share: float) -> Configuration:
    """Every run's median step at ``share`` of its mean: the rest is in long steps."""
    runs = []
    for run in config.runs:
        assert run.throughput
        mean = run.throughput.step_time_ms.mean
        times = StepTimes(mean, share * mean, 10 * mean, run.throughput.steps)
        runs.append(replace(run, throughput=replace(run.throughput, step_time_ms=times)))
    return replace(config, runs=tuple(runs))


def typical(*configs: Configuration) -> TypicalSpeedup:
    ((pair,), _) = pair_all(configs)
    found = pair.typical
    assert found
    assert found.of_means == pair.speedup.value
    return found


@pytest.mark.parametrize(
    ("single_share", "multi_share", "differs"),
    [(1.0, 1.0, False), (1.0, 0.92, False), (1.0, 0.9, True), (0.9, 1.0, True), (0.7, 0.7, False)],
)
def test_medians_leave_the_long_steps_out(
    tmp_path: Path, single_share: float, multi_share: float, differs: bool
) -> None:
    single, multi = configurations(tmp_path)
    found = typical(with_median(single, single_share), with_median(multi, multi_share))
    assert found.of_medians == pytest.approx(found.of_means * single_share / multi_share)
    assert found.multi_mean_over_median == pytest.approx(1 / multi_share)
    assert found.single_mean_over_median == pytest.approx(1 / single_share)
    assert found.differs is differs


def test_it_is_samples_of_a_step_over_the_median_of_the_records(tmp_path: Path) -> None:
    single, multi = configurations(tmp_path)
    ((pair,), _) = pair_all((single, multi))
    found = pair.typical
    assert found
    means = []
    for config in (single, multi):
        times = [
            np.median(run.cell.steps[0].timed().column("step", "device")) for run in config.runs
        ]
        means.append(float(np.exp(np.mean(np.log(times)))))
    assert found.of_medians == pytest.approx(means[0] / means[1])


def test_a_median_of_zero_says_nothing(tmp_path: Path) -> None:
    single, multi = configurations(tmp_path)
    ((pair,), _) = pair_all((with_median(single, 0.0), multi))
    assert pair.typical is None


def test_under_weak_scaling_twice_the_samples_count_twice(tmp_path: Path) -> None:
    found = typical(*configurations(tmp_path, "weak"))
    assert found.of_medians == pytest.approx(found.of_means, rel=0.01)
    assert not found.differs
