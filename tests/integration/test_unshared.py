"""A host that does not share the sweep's folder: its cell trains apart, and comes back whole."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from fakes.train_command import LEAN, ROOT
from scalewise.config import resolve
from scalewise.paths import conf_dir
from scalewise.records import Attempt, CellFolder, read_steps
from scalewise.sweep.demand import Demand
from scalewise.sweep.folder_sync import apply, contents
from scalewise.sweep.job import Origin, Outcome
from scalewise.sweep.order import Order, answer_in, from_line
from scalewise.sweep.plan import Cell, plan, request
from scalewise.sweep.ray_host import Answer, HostActor


def small_cell() -> Cell:
    overrides = [*LEAN, "hardware=cpu", "hardware.cores_per_device=1", "batch_size=16"]
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        plain = resolve(compose(config_name="config", overrides=[*overrides, "validation=never"]))
    (cell,) = plan([request(overrides, plain)], 0)
    return cell


@pytest.mark.slow
def test_what_a_cell_records_elsewhere_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCALEWISE_RUNTIME_DIR", str(tmp_path / "runtime"))
    cell = small_cell()
    here = CellFolder(tmp_path / "sweep" / cell.planned.name)
    here.save_config(cell.request.plain)
    earlier = Attempt(1, "failed", "host", "node1 was lost", None, None, (), 1.0, 2.0)
    here.save_attempt(earlier)
    origin = Origin("/a/folder/of/another/host", (str(ROOT / "src"), *sys.path), ("train.py",))
    order = Order(str(here.path), cell.planned, Demand(1, 1, 0, 1), origin, "key")
    actor = HostActor()
    answers: list[Answer] = []

    def run() -> None:
        answers.append(actor.run(order, str(tmp_path / "no such token"), contents(here.path)))

    thread = threading.Thread(target=run)
    thread.start()
    copies = 0
    while thread.is_alive():
        changes = actor.changes()
        actor.tell("")
        copies += bool(changes)
        apply(here.path, changes)
        time.sleep(0.2)
    thread.join()
    apply(here.path, actor.changes())
    actor.clear()

    told = answer_in(answers[0].output)
    assert told is not None, answers[0].errors
    assert from_line(Outcome, told).state == "done"
    result = here.load_result()
    assert (result.cell_id, result.attempt) == (cell.planned.cell_id, 2)
    assert len(read_steps(here.steps_path(0), 0).rows) == 12
    assert list(here.attempts()) == [earlier]
    assert here.last_beat() is None, "nothing says that it still runs"
    assert copies > 2, "its records came while it ran"
    assert here.log_path(0, "err").exists()
