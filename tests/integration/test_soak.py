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
    """The full length is ``make soak``: 12 cells and 200 kills."""
    run = benchmark.soak(tmp_path / "soak", kills=4, seed=3, cells=4)
    assert sum(run.kills.values()) == 4
    assert run.resumes >= 1
    assert len(run.seen) % 4 == 0
    assert list(run.processes()) == []
