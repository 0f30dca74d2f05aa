"""``sweep.rerun`` for some cells of a folder whose other results are of another state."""

import dataclasses
from pathlib import Path

import pytest

from fakes.recorded_cell import finish, plan_sweep
from fakes.requests import asked
from scalewise.config import ConfigError
from scalewise.host import SOURCE_SHA256, identity, running_code
from scalewise.records import (
    SweepFolder,
)
from scalewise.sweep import Cell
from scalewise.sweep.plan import plan
from scalewise.sweep.resume import refuse_mixing, select

THERE, HERE = "NVIDIA A10G", "NVIDIA H200"
DIFFERENT = f"device: {THERE} there, {HERE} here"
MIXED = f"mixed: {DIFFERENT}"


@pytest.fixture
def folder(tmp_path: Path) -> SweepFolder:
    """Two configurations of two repeats, all done on another device."""
    cells = twice("seed=1") + twice("seed=2")
    sweep = plan_sweep(tmp_path / "sweep", [])
    planned = tuple(cell.planned for cell in cells)
    sweep.save_plan(dataclasses.replace(sweep.load_plan(), cells=planned))
    for one in planned:
        done = finish(sweep, one)
        done.save_provenance(
            dataclasses.replace(done.load_provenance(), code=running_code(Path.cwd()))
        )
    return sweep


def twice(*overrides: str) -> list[Cell]:
    given = ("repeats=2", *overrides)
    return plan([asked(*given)], 0)


def mixed(folder: SweepFolder, *overrides: str) -> list[str]:
    """What a command with these overrides says of the results that stay."""
    cells = twice(*overrides)
    rerun = cells[0].request.cell.sweep.rerun
    selection = select(cells, folder, rerun)
    return refuse_mixing(folder, selection.cells, selection.rerun_ids, {HERE})


def test_what_a_command_names_runs_again_and_the_rest_is_only_mentioned(
    folder: SweepFolder,
) -> None:
    assert mixed(folder, "seed=1", "sweep.rerun=all") == [f"{MIXED} (in 2 cells)"]
    with pytest.raises(ConfigError, match=rf"{DIFFERENT} \(in 4 cells\)"):
        mixed(folder, "seed=3")


def test_repeats_of_one_configuration_stay_of_one_state(folder: SweepFolder) -> None:
    (name,) = (cell.planned.name for cell in twice("seed=1") if cell.planned.repeat == 0)
    with pytest.raises(ConfigError, match=rf"{DIFFERENT} \(in 1 cell\).*with every repeat"):
        mixed(folder, "seed=1", f"sweep.rerun={name}")
    again = mixed(folder, "seed=1", f"sweep.rerun={name}", "sweep.allow_mixed=true")
    assert again == [f"{MIXED} (in 3 cells)"]


def test_the_code_is_that_of_the_tree_whose_state_the_ranks_record(
    folder: SweepFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Typed in a repository of the user's own, a resumed sweep was refused for its commit."""
    for _, cell in folder.cells():
        ours = {"commit": "scalewise's", SOURCE_SHA256: "0" * 64}
        cell.save_provenance(dataclasses.replace(cell.load_provenance(), code=ours))
    monkeypatch.setattr(identity, "scalewise_version", lambda: {SOURCE_SHA256: "0" * 64})
    assert refuse_mixing(folder, twice("seed=3"), (), {THERE}) == []
    monkeypatch.setattr(identity, "scalewise_version", lambda: {SOURCE_SHA256: "1" * 64})
    with pytest.raises(ConfigError, match=r"code: .* 0000000000 there, 1111111111 here"):
        refuse_mixing(folder, twice("seed=3"), (), {THERE})


def test_results_of_other_own_code_are_not_mixed_silently(
    folder: SweepFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The class lies on PYTHONPATH, outside of every repository."""
    module = tmp_path / "brought_on_path.py"
    module.write_text("FACTOR = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    target = "brought_on_path.Net"
    new = ("seed=1", "repeats=3", f"model._target_={target}")
    (_, cell), *_ = folder.cells()
    code = running_code(Path.cwd(), [target])
    cell.save_provenance(dataclasses.replace(cell.load_provenance(), code=code))

    def found() -> list[str]:
        return refuse_mixing(folder, twice(*new), (), {THERE})

    assert found() == [], "the other cell's code is unknown, and not different"
    module.write_text("FACTOR = 100\n")
    with pytest.raises(ConfigError, match=r"your brought_on_path\.py .* \(in 1 cell\)"):
        found()
    assert refuse_mixing(folder, twice("seed=3"), (), {THERE}) == [], "nothing of it is added"


def test_a_resumed_sweep_says_that_what_it_leaves_is_of_older_code(
    folder: SweepFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With nothing to run nothing is mixed, and "was done before" told of no change."""
    module = tmp_path / "left_as_it_was.py"
    module.write_text("FACTOR = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    target = "left_as_it_was.Net"
    (one, *_) = cells = twice("seed=1")
    # Requests share their parts: a change of one in place would be one of all later tests.
    plain = {**one.request.plain, "model": {**one.request.plain["model"], "_target_": target}}
    own = dataclasses.replace(one.request, plain=plain)
    cells = [dataclasses.replace(cell, request=own) for cell in cells]
    for cell in cells:
        at = folder.cell(cell.planned.name)
        code = running_code(Path.cwd(), [target])
        at.save_provenance(dataclasses.replace(at.load_provenance(), code=code))

    def said(again: frozenset[str] = frozenset()) -> list[str]:
        return refuse_mixing(folder, cells, again, {THERE})

    assert said() == []
    module.write_text("FACTOR = 100\n")
    (line,) = said()
    assert "left_as_it_was.py" in line
    assert "(in 2 cells); sweep.rerun=all" in line
    assert said(frozenset(cell.planned.cell_id for cell in cells)) == [], "they run again"
