"""Runs whose figures mean nothing get no verdict but *invalid*, and their command exits with 4.

Beside them a small part of ``make self-test``: a fault planted into a real cell is named.
"""

import json
import os
import shutil
from pathlib import Path

import pytest

from fakes.train_command import ROOT, Finished, Train
from scalewise.analysis import configurations, load_sweep
from scalewise.analysis.loss_budget import make_budget

PATH = os.pathsep.join([str(ROOT / "src"), str(ROOT / "benchmarks")])
LEAN = ("max_steps=40", "warmup_steps=10", "tracking=none", "monitor.devices=false",
        "validation=never", "log_every_n_steps=5", "strategy=ddp")  # fmt: skip
MISLEADING = (
    "model._target_=misleading_fits.Net dataset._target_=misleading_fits.Data "
    "+dataset.case=sound,diverges,frozen,time_major,apart,by_hand"
)
# A fault that no neighbour of this host hides; those of times are ``make self-test``'s.
PLANTED = "batch_size=64 +fault._target_=faults.plant.PlantedFault +fault.kind=no_sampler"


@pytest.fixture(scope="module")
def run(shared_train: Train, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("user")
    shutil.copy(ROOT / "tests" / "fakes" / "misleading_fits.py", folder)
    grids = f'hydra.sweeper.grids=["{MISLEADING}","{PLANTED}"]'
    done = shared_train("-m", *LEAN, grids, cwd=folder, PYTHONPATH=PATH)
    assert done.status == 4, done.err
    return done


def codes(report: Path) -> dict[str, list[str]]:
    """Label to the codes of what makes it invalid."""
    told = json.loads((report / "results.json").read_text())
    invalid = [(i["about"], i["code"]) for i in told["remarks"] if i["gravity"] == "invalid"]
    found = {}
    for one in told["configurations"]:
        own = dict.fromkeys(code for about, code in invalid if about == one["config_id"])
        assert (one["verdict"] == "invalid") == bool(own)
        found[one["configuration"]] = [*own]
    return found


def test_each_is_named_with_its_reason_and_a_sound_run_is_not(run: Finished) -> None:
    found = codes(run.sweep.report_path)
    assert {label.rpartition("=")[2]: why for label, why in found.items()} == {
        "sound": [],
        "diverges": ["loss_not_finite"],
        "frozen": ["frozen"],
        "time_major": ["sample_count"],
        "apart": ["replicas_differ"],
        "by_hand": [],
        "medium ddp x2": ["shards_overlap"],  # the planted one
    }
    told = json.loads((run.sweep.report_path / "results.json").read_text())
    about = {one["config_id"]: one["configuration"] for one in told["configurations"]}
    silent = {about[one["about"]] for one in told["remarks"] if one["code"] == "nothing_sent"}
    assert {label.rpartition("=")[2] for label in silent} == {"apart", "by_hand"}
    learning, fixed = 8 * 3 + 3, 8 * 8 + 8
    for _, folder in run.cells().values():
        if "case" in folder.load_config()["dataset"]:
            for rank in folder.load_result().ranks:
                assert rank.parameters_trainable == learning
                assert rank.parameters_total == learning + fixed


def test_a_sound_run_has_its_losses(run: Finished) -> None:
    (healthy,) = (
        one
        for one in configurations(load_sweep(run.sweep.path))
        if (one.cells[0].config or {})["dataset"].get("case") == "sound"
    )
    assert make_budget(healthy).loss("transfer") is not None
    (timed,) = healthy.runs
    for rank in timed.cell.result.ranks:
        delay = rank.run_queue_ms_per_step
        assert (delay is None) == ("run_queue_ms_per_step" in rank.missing)
        assert delay is None or delay >= 0
