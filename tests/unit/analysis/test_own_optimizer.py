"""What a LightningModule really trained with stands in the report, not what was configured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from fakes.recorded import DDP, Spec, edit_ranks, write_sweep
from fakes.sections import lines_of
from scalewise.analysis import analyse, configurations, load_sweep
from scalewise.analysis.model import Sweep

OWN = "the module's own (SGD)"


def sweep_of(path: Path, *specs: Spec, own: str | None = "SGD") -> Path:
    write_sweep(path, specs)
    edit_ranks(path, lambda rank: rank.update(own_optimizer=own))
    return path


def optimizers(sweep: Sweep) -> set[str | None]:
    return {config.name("optimizer") for config in configurations(sweep)}


def test_the_modules_own_is_named_and_its_settings_are_not_the_configurations(
    tmp_path: Path,
) -> None:
    sweep = load_sweep(sweep_of(tmp_path, Spec(), DDP))
    assert optimizers(sweep) == {OWN}
    (shared,) = lines_of(analyse(sweep), "scaling")
    assert f"optimizer={OWN}" in shared
    assert "lr=" not in shared
    assert not [p for cell in sweep.cells for p in cell.problems]


def test_the_configured_one_is_named_where_it_was_used(tmp_path: Path) -> None:
    sweep = load_sweep(sweep_of(tmp_path, Spec(), DDP, own=None))
    assert optimizers(sweep) == {"adam"}
    assert "lr=0.001" in lines_of(analyse(sweep), "scaling")[0]


def test_a_cell_that_did_not_finish_has_that_of_its_model(tmp_path: Path) -> None:
    other = {"model": {"name": "other"}}
    failed = replace(DDP, outcome="failed")
    sweep = load_sweep(sweep_of(tmp_path, Spec(), failed, Spec(outcome="failed", config=other)))
    found = [(cell.config or {})["optimizer"]["name"] for cell in sweep.cells]
    assert found == [OWN, OWN, "adam"]


def test_what_was_asked_for_and_not_used_is_said(tmp_path: Path) -> None:
    path = sweep_of(tmp_path, Spec())
    plan = path / "sweep.json"
    told = json.loads(plan.read_text())
    told["cells"][0]["overrides"] = ["model=large", "optimizer=adam", "+optimizer.lr=0.1"]
    plan.write_text(json.dumps(told))
    (cell,) = load_sweep(path).cells
    assert cell.problems == (
        "optimizer=adam +optimizer.lr=0.1 was not used: the model built its own optimizer (SGD)",
    )


def test_a_cell_without_a_plan_says_it_too(tmp_path: Path) -> None:
    path = sweep_of(tmp_path, Spec())
    (path / "sweep.json").unlink()
    (folder,) = (p.parent for p in path.glob("*/config.yaml"))
    assert optimizers(load_sweep(folder)) == optimizers(load_sweep(path)) == {OWN}
