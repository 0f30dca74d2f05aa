"""Every number of results.csv of kept sweeps stays: a change of one is seen, and on purpose."""

import io
import os
from pathlib import Path

import pandas as pd
import pytest

from fakes.kept_sweep import analysis_of, kept
from scalewise.report.export import results_csv

GOLDEN = Path(__file__).parents[2] / "golden" / "figures"
SWEEPS = (
    "cpu2_matrix", "h100x2_thresholds", "h100x4_slow_rank", "h200x2_mlp_study", "h200x2_planted",
    "h200x2_strategies", "rehearsal/gpt2_x4_nvlink", "scripts_cpu2",
)  # fmt: skip


@pytest.mark.parametrize("name", SWEEPS)
def test_figures_of_kept_sweeps_stay(name: str) -> None:
    found = pd.read_csv(io.StringIO(results_csv(analysis_of(kept(name)))))
    found = found.set_index("configuration").select_dtypes("number")
    path = GOLDEN / f"{name}.csv"
    if "UPDATE_DOCS" in os.environ:
        path.parent.mkdir(parents=True, exist_ok=True)
        found.to_csv(path, float_format="%.6g")
    pd.testing.assert_frame_equal(
        found, pd.read_csv(path, index_col=0), check_dtype=False, rtol=1e-4
    )
