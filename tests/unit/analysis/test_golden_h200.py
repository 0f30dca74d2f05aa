"""Recordings of real runs on two H200s: GPT-2 124M, bf16, global batch 32, NCCL.

The recordings stand in tests/data; what is asserted was computed from them by hand once.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.kept_sweep import with_known_code
from fakes.sections import lines_of
from scalewise.analysis import Analysis, analyse, load_sweep
from scalewise.analysis.model import Sweep

DATA = Path(__file__).parents[2] / "data"


@pytest.fixture(scope="module")
def nvlink(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    folder = tmp_path_factory.mktemp("kept") / "sweep"
    return analyse(load_sweep(with_known_code(DATA / "h200x2_gpt2", folder)))


@pytest.fixture(scope="module")
def without_peers() -> Sweep:
    return load_sweep(DATA / "h200x2_gpt2_nop2p")


def test_two_gpus_pay(nvlink: Analysis) -> None:
    (pair,) = nvlink.pairs
    assert pair.devices == 2
    assert pair.speedup.value == pytest.approx(1.771, abs=0.005)
    assert pair.speedup.interval is not None
    assert pair.speedup.interval.low > 1.7
    assert pair.judgement.verdict == "beneficial"


def test_the_loss_is_that_of_all_samples(nvlink: Analysis) -> None:
    """Rank 0's samples alone would have had 3.2156."""
    (pair,) = nvlink.pairs
    assert pair.loss is not None
    assert (pair.loss.name, pair.loss.samples) == ("train_loss", 2560)
    assert pair.loss.multi == pytest.approx(3.2083, abs=5e-5)
    assert pair.loss.single == pytest.approx(3.2110, abs=5e-5)


def test_without_peer_to_peer_communication_is_exposed_and_labelled(without_peers: Sweep) -> None:
    analysis = analyse(without_peers)
    (configuration,) = analysis.configurations
    provenance = configuration.cells[0].provenance
    assert provenance is not None
    assert provenance.emulated == ("NCCL_P2P_DISABLE=1 on GPUs with NVLink",)
    limits = [d.limit for found in analysis.diagnoses.values() for d in found]
    assert "communication-bound" in limits


def test_small_models_are_launch_bound_and_no_rank_is_blamed_for_it() -> None:
    """Where the hosts set the pace, one runs ahead of the other; neither holds it back."""
    analysis = analyse(load_sweep(Path(__file__).parents[3] / "docs/results/h200x2_small"))
    limits = {
        c.label: [d.limit for d in analysis.diagnoses[c.config_id]] for c in analysis.measured
    }
    assert {label for label, found in limits.items() if found[:1] == ["launch-bound"]} == {
        "medium single x1",
        "medium ddp x2",
        "gpt2_tiny ddp x2",
    }
    assert not [found for found in limits.values() if "straggler" in found]


def test_four_gpus_that_lose_a_third_of_the_step_are_not_called_compute_bound(
    tmp_path: Path,
) -> None:
    """Two stalls after warm-up, and waits for rank 2: said with what they took, nobody accused."""
    kept = Path(__file__).parents[2] / "golden/stalled/h200x4_gpt2"
    analysis = analyse(load_sweep(with_known_code(kept, tmp_path / "sweep")))
    (pair,) = analysis.pairs
    assert analysis.diagnoses[pair.multi.config_id] == ()
    assert [d.limit for d in analysis.diagnoses[pair.single.config_id]] == ["compute-bound"]
    reason = pair.judgement.reason
    assert "ranks wait 6.94 of 38 ms a step for the last of them (rank 0: 10.3, " in reason
    assert "rank 2 is last in most steps in 2 of 3 runs" in reason
    assert "long steps took 20 to 26 % of the time of gpt2 ddp x4 in 2 of 3 runs" in reason
    (line,) = [line for line in lines_of(analysis, "doubts") if "hiccups" in line]
    assert "2 of 60 steps took 26% of the time in repeat 1 (the first at step 20; mean" in line
    assert "2 of 60 steps took 20% of the time in repeat 2 (the first at step 23; mean" in line
    (advised,) = lines_of(analysis, "load_balance")
    assert advised.startswith("gpt2 ddp x4 (good): nothing to do")


def test_two_gpus_that_lose_little_have_no_such_doubts(nvlink: Analysis) -> None:
    (pair,) = nvlink.pairs
    assert pair.doubts == ()
    assert "ranks wait" not in pair.judgement.reason
    assert [d.limit for d in nvlink.diagnoses[pair.multi.config_id]] == ["compute-bound"]
    assert not [line for line in lines_of(nvlink, "doubts") if "hiccups" in line]
