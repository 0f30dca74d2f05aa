"""A sweep that is killed at random moments and resumed loses nothing and repeats nothing."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from scalewise.host import usable_cores

_BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "soak.py"


@pytest.fixture
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("soak", _BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["soak"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(len(usable_cores()) < 2, reason="a cell of two devices needs two cores")
def test_every_cell_is_there_exactly_once_after_kills_at_random(
    benchmark: ModuleType, tmp_path: Path
) -> None:
    """The full length is ``make soak``: 12 cells and 200 kills, up to 12 s apart."""
    run = benchmark.soak(tmp_path / "soak", kills=10, seed=3, cells=2, last_s=4.0)
    assert sum(run.targets.values()) == 10
    assert set(run.targets) == {"sweep", "supervisor", "rank", "several at once"}
    assert run.resumes >= 1
    assert len(run.seen) == 2 * run.sweeps
    assert list(run.processes()) == []
