"""Runs whose figures mean nothing get no verdict but *invalid*, and their command exits with 4."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from fakes.train_command import ROOT, Train

LEAN = ("max_steps=40", "warmup_steps=10", "tracking=none", "monitor.devices=false",
        "validation=never", "log_every_n_steps=5", "strategy=ddp")  # fmt: skip


def codes(report: Path) -> dict[str, list[str]]:
    """Label to the codes of what makes it invalid."""
    told = json.loads((report / "results.json").read_text())
    for one in told["configurations"]:
        assert (one["verdict"] == "invalid") == bool(one["invalid"])
    return {c["configuration"]: [i["code"] for i in c["invalid"]] for c in told["configurations"]}


def test_each_is_named_with_its_reason_and_a_sound_run_is_not(
    shared_train: Train, tmp_path: Path
) -> None:
    shutil.copy(ROOT / "tests" / "fakes" / "misleading_fits.py", tmp_path)
    run = shared_train(
        "-m",
        *LEAN,
        "model._target_=misleading_fits.Net",
        "dataset._target_=misleading_fits.Data",
        "+dataset.case=sound,diverges,frozen,time_major",
        cwd=tmp_path,
    )
    assert run.status == 4, run.err
    assert run.folder is not None
    found = {label.rpartition("=")[2]: why for label, why in codes(run.folder / "report").items()}
    assert found == {
        "sound": [],
        "diverges": ["loss_not_finite"],
        "frozen": ["untrained"],
        "time_major": ["sample_count"],
    }
    for _, folder in run.cells().values():
        for rank in folder.load_result().ranks:
            learning, fixed = 8 * 3 + 3, 8 * 8 + 8
            assert (rank.parameters_trainable, rank.parameters_total) == (
                learning, learning + fixed,
            )  # fmt: skip
