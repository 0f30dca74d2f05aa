"""The benchmarks of the sampler run, and what they print follows from what they keep."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timing

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def run(script: str, *arguments: str, out: Path) -> tuple[Any, str]:
    command = [sys.executable, str(BENCHMARKS / script), *arguments, "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stderr == ""
    return json.loads(out.read_text()), done.stdout


def test_a_short_soak_judges_two_cells(tmp_path: Path) -> None:
    result, printed = run(
        "sampler_soak.py", "--minutes", "0.05", "--gpus", "2", out=tmp_path / "soak.json"
    )
    assert set(result["cells"]) == {"elected", "follower"}
    for cell in result["cells"].values():
        assert cell["samples"] > 25
        assert cell["cost_ms_median"] > 0
    assert printed.splitlines()[-1] in ("passed", "FAILED")


def test_the_lanes_cost_something_and_the_table_says_what(tmp_path: Path) -> None:
    result, printed = run(
        "sampler_cost.py", "--fake", "2", "--parts", "lanes", "--readings", "50",
        out=tmp_path / "cost.json",
    )  # fmt: skip
    lanes = result["lanes"]
    assert (result["library"], lanes["gpus"]) == ("fake", 2)
    assert lanes["core_ms"]["host_p50"] > 0
    # The fake library's energy counter takes 3.5 ms a GPU.
    assert lanes["slow_ms"]["per_gpu_p50"] > 3.4
    assert "2 x NVIDIA H200 (fake NVML" in printed
    assert [line.split()[0] for line in printed.splitlines()[-3:]] == ["core", "slow", "gpm"]
