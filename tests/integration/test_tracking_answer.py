"""A sweep's answer as one run in both trackers, handed over twice."""

import json
import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fakes.kept_sweep import kept
from scalewise.analysis import analyse, load_sweep
from scalewise.records import SweepFolder
from scalewise.report import build


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """A kept sweep, with both trackers and its report."""
    folder = tmp_path / "a_sweep"
    shutil.copytree(kept("cpu2_matrix"), folder)
    for _, cell in SweepFolder(folder).cells():
        path = cell.path / "config.yaml"
        config = yaml.safe_load(path.read_text())
        config["tracking"] = {"name": "both", "trackers": ["trackio", "wandb"], "project": "mine"}
        path.write_text(yaml.safe_dump(config, sort_keys=False))
    build(analyse(load_sweep(folder)))
    return folder


def test_both_trackers_hold_one_answer(
    sweep: Path, tmp_path: Path, trackers_environment: dict[str, str]
) -> None:
    environment = {**trackers_environment, "WANDB_MODE": "offline"}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-P", "-m", "scalewise.tracking.answer", str(sweep)],
            env=environment, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    (offline,) = (sweep / "wandb").glob("offline-run-*")
    command = [Path(sys.executable).with_name("wandb"), "leet", "inspect", "--json"]
    (log,) = offline.glob("*.wandb")
    read = subprocess.run([*command, log], capture_output=True, text=True, check=True).stdout
    records = [json.loads(line) for line in read.splitlines()]
    summary = {
        k: v for r in records if r["type"] == "summary" for k, v in r["summary"]["update"].items()
    }
    label = "gpt2_tiny ddp x2"
    assert summary[f"{label}/verdict"] == "pays"
    for figure in ("speedup_ratio", "efficiency_ratio", "sample_cost_ratio"):
        low, high = (summary[f"{label}/{figure}_{end}95"] for end in ("low", "high"))
        assert low < summary[f"{label}/{figure}"] < high
    with sqlite3.connect(tmp_path / "trackio" / "mine.db") as database:
        ((name, logged),) = database.execute("select run_name, metrics from metrics").fetchall()
    assert re.fullmatch(r"\d\d-\d\d \d\d:\d\d gpt2_tiny,medium answer \w{4}", name)
    text = logged.decode() if isinstance(logged, bytes) else logged
    for words in ("gpt2_tiny ddp x2/speedup", "medium ddp x2/verdict", "does not pay",
                  "trackio.markdown"):  # fmt: skip
        assert words in text
    assert list((tmp_path / "trackio" / "artifacts" / "mine").rglob("*"))
