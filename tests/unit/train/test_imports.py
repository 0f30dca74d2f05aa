"""What a rank imports to train, and what it leaves out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from scalewise.train import is_ours

PROBE = """
import gc, json, sys
from scalewise.train import import_training
import_training(None)
left_out = [n for n in ("scipy.signal", "matplotlib", "transformers") if n in sys.modules]
import torch
from torchmetrics.classification import MulticlassAccuracy
accuracy = MulticlassAccuracy(num_classes=3, average="micro")
accuracy.update(torch.tensor([0, 1, 2, 2]), torch.tensor([0, 1, 2, 0]))
import scipy.signal, matplotlib
from lightning_utilities.core.imports import package_available
print(json.dumps({
    "loaded": left_out,
    "trains": "scalewise.train.experiment" in sys.modules,
    "accuracy": float(accuracy.compute()),
    "there_again": package_available("scipy") and package_available("matplotlib"),
    "collects": gc.isenabled(),
    "frozen": gc.get_freeze_count(),
}))
"""


def test_leaves_out_what_nothing_trains_with_and_gives_it_back(tmp_path: Path) -> None:
    # torchmetrics looks for it by its metadata, and would import it for its scores of texts.
    (tmp_path / "transformers.py").write_text("raise ImportError('scikit-learn wants scipy')\n")
    metadata = tmp_path / "transformers-99.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: transformers\nVersion: 99.0\n")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    answer = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, check=True, timeout=120,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    found = json.loads(answer.stdout)
    assert found.pop("frozen") > 100_000
    assert found == {
        "loaded": [],
        "trains": True,
        "accuracy": 0.75,
        "there_again": True,
        "collects": True,
    }


def test_own_classes_of_a_user_get_everything() -> None:
    ours = {"_target_": "scalewise.models.mlp.Mlp"}
    assert is_ours({"model": ours, "dataset": ours, "optimizer": ours})
    for key in ("model", "dataset", "optimizer"):
        plain = {"model": ours, "dataset": ours, "optimizer": ours}
        assert not is_ours({**plain, key: {"_target_": "mine.Net"}})
        assert not is_ours({**plain, key: {"_target_": "scalewise_extra.Net"}})
