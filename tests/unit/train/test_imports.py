"""What a rank and a Monitor import to train, and what they leave out."""

from __future__ import annotations

import json
import subprocess
import sys

from scalewise.train import is_ours

PROBE = """
import gc, json, sys
from scalewise.train import import_training
import_training(None)
unused = [n for n in ("scipy.signal", "matplotlib", "transformers") if n in sys.modules]
from lightning_utilities.core.imports import package_available
there_again = package_available("scipy") and package_available("matplotlib")
trains = "scalewise.train.experiment" in sys.modules
frozen = gc.isenabled(), gc.get_freeze_count() > 100_000
import scalewise.train.monitor
above = ("scalewise.analysis", "scalewise.sweep", "scalewise.report")
above = [name for name in sys.modules if name.startswith(above)]
print(json.dumps([unused, above, trains, there_again, *frozen]))
"""


def test_leaves_out_what_nothing_trains_with_and_gives_it_back() -> None:
    answer = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, check=True, timeout=120
    )
    assert json.loads(answer.stdout) == [[], [], True, True, True, True]


def test_own_classes_of_a_user_get_everything() -> None:
    ours = {"_target_": "scalewise.models.mlp.Mlp"}
    assert is_ours({"model": ours, "dataset": ours, "optimizer": ours})
    for key in ("model", "dataset", "optimizer"):
        plain = {"model": ours, "dataset": ours, "optimizer": ours}
        assert not is_ours({**plain, key: {"_target_": "mine.Net"}})
        assert not is_ours({**plain, key: {"_target_": "scalewise_extra.Net"}})
