"""Recordings of real runs on two H200s: GPT-2 124M, bf16, global batch 32, NCCL.

The recordings stand in tests/data; what is asserted was computed from them by hand once.
"""

from pathlib import Path

import pytest

from fakes.kept_sweep import analysis_of, kept, with_known_code
from scalewise.analysis import analyse, load_sweep
from scalewise.analysis.run import measure_run

DATA = Path(__file__).parents[2] / "data"


def test_two_gpus_pay_and_their_loss_is_that_of_all_samples(tmp_path: Path) -> None:
    """Rank 0's samples alone would have had a loss of 3.2156."""
    (pair,) = analyse(load_sweep(with_known_code(DATA / "h200x2_gpt2", tmp_path / "sweep"))).pairs
    assert (pair.devices, pair.verdict) == (2, "pays")
    assert pair.speedup.value == pytest.approx(1.771, abs=0.005)
    assert pair.speedup.interval.low > 1.7
    assert (pair.loss.name, pair.loss.samples) == ("train_loss", 2560)
    assert pair.loss.multi == pytest.approx(3.2083, abs=5e-5)
    assert pair.loss.single == pytest.approx(3.2110, abs=5e-5)


def test_without_peer_to_peer_communication_is_exposed_and_labelled() -> None:
    analysis = analyse(load_sweep(DATA / "h200x2_gpt2_nop2p"))
    (configuration,) = analysis.configurations
    assert configuration.cells[0].provenance.emulated == ("NCCL_P2P_DISABLE=1 on GPUs with NVLink",)
    (limit,) = analysis.budgets[configuration.config_id].limits
    assert (limit.cause, limit.ms) == ("transfer", pytest.approx(6.2, abs=0.1))


def test_small_models_lose_to_their_hosts_and_no_rank_is_blamed_for_it() -> None:
    """Where the hosts set the pace, one runs ahead of the other; neither holds it back."""
    analysis = analysis_of(kept("h200x2_small"))
    limits = {c.label: analysis.budgets[c.config_id].limits for c in analysis.measured}
    for label in ("medium ddp x2", "gpt2_tiny ddp x2"):
        assert [one.cause for one in limits[label]] == ["host_late"]
    assert not [one for found in limits.values() for one in found if one.cause == "waiting"]


def test_four_gpus_that_lose_half_of_the_step_are_told_to_what(tmp_path: Path) -> None:
    """Two stalls after warm-up, and hosts that launch late."""
    stalled = Path(__file__).parents[2] / "golden/stalled/h200x4_gpt2"
    found = analyse(load_sweep(with_known_code(stalled, tmp_path / "sweep")))
    reason = found.reasons[found.pairs[0].multi.config_id]
    assert "lost 18.4 ms a step: 6.76 GPU idle, its host late, 5.14 long steps" in reason


def test_lanes_words_and_energy_of_one_gpu_are_those_of_its_recording() -> None:
    """A run on one H200 (driver 580)."""
    (cell,) = load_sweep(DATA / "h200_single").cells
    run, (series,) = measure_run(cell), cell.devices
    (gpu,) = run.usage.devices
    first = series.samples[0][gpu.device.id]
    assert (first.sm_clock_mhz, first.throttle_reasons) == (345.0, ()), "idle, and not throttled"
    assert (gpu.throttle_reasons, gpu.throttled_share, series.alerts) == ((), 0.0, ())
    # GPM's reading before it, 0.000006 %, is mostly of the seconds before training.
    assert gpu.sm_activity_percent == pytest.approx(0.4345, abs=1e-4)
    assert (gpu.utilization_percent, gpu.energy.run_j) == (8.0, pytest.approx(4472.035 - 3442.15))
    assert (gpu.energy.source, gpu.energy.missing) == ("counter", ())
    # 360 steps in 0.817 s between 92 and 121 W.
    assert run.value("energy_j_per_step") == pytest.approx(0.272, abs=0.001)
    assert run.value("energy_j_per_run") == gpu.energy.run_j
