"""Planning: what Hydra would compose, in a fraction of its time, and what a folder already has."""

import dataclasses
import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hydra.errors import HydraException

from fakes.recorded import RecordedCell, finish, plan_sweep
from fakes.requests import asked, composer, read
from scalewise.config import ConfigError, SweepConfig, resolve
from scalewise.gpu import HostMismatch
from scalewise.host import SOURCE_SHA256, identity, running_code
from scalewise.records import PROTOCOL, CellFolder, PlannedCell, SweepFolder, SweepPlan
from scalewise.sweep import Cell, resume
from scalewise.sweep.plan import plan, request
from scalewise.sweep.preflight import Cluster, ThisHost
from scalewise.sweep.preview import preview
from scalewise.sweep.resume import Selection, differing, planned_repeats, refuse_mixing, select


def test_programs_of_others_keep_the_sweeper_of_hydra() -> None:
    code = (
        "from hydra import compose, initialize; initialize(version_base=None); "
        "print(compose(return_hydra_config=True).hydra.sweeper._target_)"
    )
    # In a process of its own: train.py stores another sweeper for as long as its process lives.
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip().endswith(".BasicSweeper")


@pytest.mark.parametrize(
    "overrides",
    [
        ("seed=3",),
        ("experiment=matrix_gpt2_tiny", "strategy=ddp", "strategy.devices=2", "max_steps=30"),
        ("+model.note='a b'", "++model.width=8", "tracking.trackers=[wandb]"),
        ("optimizer={name: mine, _target_: mine.Sgd}", "max_epochs=null"),
        ("~precision", "scaling=weak", "+new.group.key=1"),
        ("model.name=${dataset.name}", "gradient_clip_norm=0.5"),
        ("batch_size=7", "+model.note=${batch_size}", "~seed", "++model={width: 8}"),
    ],
)
def test_a_job_is_composed_as_hydra_does_it(overrides: tuple[str, ...]) -> None:
    expected = resolve(composer().compose(overrides))
    assert composer().plain(overrides, 0) == expected
    assert composer().plain(overrides, 1) == expected, "an earlier job must not show in a later one"


@pytest.mark.parametrize(
    ("words", "key"), [(("experiment=agnews_base",), "max_epochs"), (("seed=3",), None)]
)
def test_keys_that_an_experiment_sets_are_known(words: tuple[str, ...], key: str | None) -> None:
    composer().plain(words, 0)
    found = composer().written(words)
    assert key in found if key else found == ()


def test_the_page_shows_what_a_preview_prints(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs/sweeps.md").read_text(encoding="utf-8")
    typed, *shown = page.partition("$ python train.py -m ")[2].partition("\n\n")[0].split("\n    ")
    cells = plan(read(typed.removesuffix(" --dry-run").split()), 0)
    everything = Selection(tuple(cells), frozenset())
    assert preview(SweepFolder(tmp_path), everything, Cluster(), packed=False)[0] == shown


@pytest.mark.parametrize("wrong", ["sede=3", "model.widht.x=3", "+seed=3", "model=nonesuch"])
def test_what_hydra_refuses_is_refused(wrong: str) -> None:
    with pytest.raises(HydraException):
        composer().plain((wrong,), 0)


def test_hydra_composes_once_for_all_cells_of_the_same_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choices = (("model=medium", "model=large"), ("strategy=single", "strategy=ddp"))
    # Seeds first: each cell then has other groups than the one before.
    jobs = list(itertools.product([f"seed={seed}" for seed in range(50)], *choices, ("repeats=1",)))
    composed = Mock(wraps=composer().compose)
    monkeypatch.setattr(composer(), "compose", composed)
    cells = plan([request(job, composer().plain(job, 0)) for job in jobs], 0)
    selection = Selection(tuple(cells), frozenset())
    lines, _ = preview(SweepFolder(tmp_path), selection, Cluster(), False)
    assert lines[-2] == "200 cells: 0 done, 200 to run"
    assert len({cell.planned.cell_id for cell in cells}) == 200
    assert composed.call_count <= 4


Begun = tuple[SweepFolder, list[Cell]]


@pytest.fixture
def begun(tmp_path: Path) -> Begun:
    """Two configurations, three repeats: of the six cells two are done and one has failed."""
    cells = plan([asked("repeats=3", f"seed={s}") for s in (1, 2)], 0)
    folder = plan_sweep(tmp_path / "sweep", [])
    before = folder.load_plan()
    folder.save_plan(type(before)(before.created_at, (), 0, tuple(cell.planned for cell in cells)))
    for cell in cells[:2]:
        finish(folder, cell.planned, steps=100)
    RecordedCell(folder.cell(cells[2].planned.name), steps=20).fail()
    return folder, cells


def test_a_preview_tells_what_is_done_and_what_will_run(begun: Begun) -> None:
    folder, cells = begun
    lines, _ = preview(folder, select(cells, folder, None), Cluster(), packed=False)
    states = [line.split()[1] if "done" in line else "to run" for line in lines[1:7]]
    assert states == ["done", "done", "to run", "to run", "to run", "to run"]
    assert lines[-2] == "6 cells: 2 done, 4 to run"
    assert lines[-1].startswith("expected time: 40.")
    assert all(cell.planned.cell_id in line for cell, line in zip(cells, lines[1:7], strict=True))
    # Nothing is known of new cells, and the folder's done ones are not asked for.
    new = plan([asked("seed=3")], 0)
    lines, _ = preview(folder, select(new, folder, None), Cluster(), packed=False)
    assert lines[0].split() == ["id", "devices", "expected", "state", "cell"]
    assert lines[-2:] == [
        "1 cell: 0 done, 1 to run",
        "expected time: unknown, as none of these cells is done yet",
    ]


class Refusing(ThisHost):
    """A host without what any cell asks for."""

    def __call__(self, cell: Cell) -> int:
        raise HostMismatch("found no GPU")


def test_what_a_host_refuses_is_what_is_left_and_nothing_where_some_can_run(begun: Begun) -> None:
    folder, cells = begun
    left = [cell.planned.cell_id for cell in cells[2:]]
    for asked_for, refused, last in (
        (cells, left, "nothing can run: see above what this host lacks"),
        (cells[:2], [], "nothing is left to do"),
    ):
        lines, found = preview(folder, select(asked_for, folder, None), Refusing(), packed=False)
        assert (lines[-1], found) == (last, dict.fromkeys(refused, "found no GPU"))

    class AllButOne(Refusing):
        def __call__(self, cell: Cell) -> int:
            return 1 if cell is cells[-1] else super().__call__(cell)

    assert preview(folder, select(cells, folder, None), AllButOne(), packed=False)[1] == {}


def test_a_preview_shows_what_was_swept_beside_the_name(tmp_path: Path) -> None:
    typed = [("seed=1", "repeats=2"), ("seed=2", "repeats=2", "batch_size=64")]
    cells = plan([asked(*overrides) for overrides in typed], 0)
    expected = {"seed=1": "seed=1", "seed=2": "seed=2 batch_size=64"}
    selection = Selection(tuple(cells), frozenset())
    lines, _ = preview(SweepFolder(tmp_path), selection, Cluster(), False, ["a later one"])
    at, end = map(lines[0].index, ("swept", "  cell"))
    for cell, line in zip(cells, lines[1:5], strict=True):
        assert line[at:end].rstrip() == expected[cell.planned.overrides[0]]
        assert line[end:].strip() == cell.planned.name
    assert lines[5][end:].strip() == "a later one"


def test_rerun_selects_failed_cells_or_those_whose_name_fits(begun: Begun) -> None:
    folder, cells = begun
    RecordedCell(folder.cell(cells[3].planned.name), steps=20).close()
    folder.cell(cells[3].planned.name).queued_path.touch()
    failed = select(cells, folder, "failed")
    assert [c.planned.name for c in failed.cells] == [c.planned.name for c in cells[:3]]
    assert failed.rerun_ids == frozenset()
    everything = select(cells, folder, "all")
    assert everything.rerun_ids == {c.planned.cell_id for c in cells[:2]}
    assert len(everything.cells) == 6
    one = select(cells, folder, cells[0].planned.name)
    assert (one.rerun_ids, len(one.cells)) == ({cells[0].planned.cell_id}, 2)
    with pytest.raises(ConfigError, match="fits none of the 6 cells"):
        select(cells, folder, "nonesuch-*")


def test_more_repeats_come_on_top_of_those_the_folder_has(begun: Begun) -> None:
    folder, cells = begun
    earlier = planned_repeats(folder)
    for repeats, highest in ((6, 5), (4, 4), (1, 4)):
        found = plan([asked(f"repeats={repeats}", "sweep.extend=2", "seed=1")], 0, earlier)
        assert sorted(c.planned.repeat for c in found) == [*range(highest + 1)]
    assert len({c.planned.cell_id for c in cells} & {c.planned.cell_id for c in found}) == 3
    again = plan([asked("repeats=1", "seed=1")], 0, earlier)
    assert len(again) == 3, "repeats that were planned are not forgotten"


def test_results_of_other_code_or_devices_are_not_mixed_silently(begun: Begun) -> None:
    folder, cells = begun
    kept = [cell.planned for cell in cells[:2]]
    same = {"commit": "def", "dirty": True}  # names a state, and compares nothing
    assert differing(folder, kept, same, {"NVIDIA A10G"}) == []
    assert differing(folder, kept, {}, set()) == [], "what is not known is no difference"
    assert differing(folder, kept, same, {"NVIDIA H200"}) == [
        "device: NVIDIA A10G there, NVIDIA H200 here (in 2 cells)"
    ]
    assert differing(folder, kept, {SOURCE_SHA256: "0" * 64}, set()) == [
        "code: scalewise's sources unknown there, 0000000000 here (in 2 cells)"
    ]
    cell = folder.cell(cells[0].planned.name)
    cell.save_provenance(dataclasses.replace(cell.load_provenance(), protocol=PROTOCOL - 1))
    assert differing(folder, kept, {}, set()) == [
        f"protocol of timing: {PROTOCOL - 1} there, {PROTOCOL} here (in 1 cell)"
    ]


def test_a_new_sweep_has_nothing_to_run_again() -> None:
    for key, value in (("rerun", "failed"), ("extend", 2)):
        given: dict[str, Any] = {key: value}
        with pytest.raises(ConfigError, match=rf"^sweep\.{key}: found {value!r} without sweep.res"):
            resume.check_options(SweepConfig(**given))


def test_what_an_earlier_version_asked_of_a_script_is_resumed(tmp_path: Path) -> None:
    planned = PlannedCell("a", "a", "a", ("precision=tf32",), 0, 1)
    SweepFolder(tmp_path).save_plan(SweepPlan(0.0, (), 0, (planned,)))
    asked("experiment=script", "script.command=ls", f"sweep.resume={tmp_path}", "precision=tf32")


# ``sweep.rerun`` for some cells of a folder whose other results are of another state.
THERE, HERE = "NVIDIA A10G", "NVIDIA H200"
DIFFERENT = f"device: {THERE} there, {HERE} here"
MIXED = f"mixed: {DIFFERENT}"


@pytest.fixture
def elsewhere(tmp_path: Path) -> SweepFolder:
    """Two configurations of two repeats, all done on another device."""
    sweep = plan_sweep(tmp_path / "sweep", [])
    planned = tuple(cell.planned for cell in twice("seed=1") + twice("seed=2"))
    sweep.save_plan(dataclasses.replace(sweep.load_plan(), cells=planned))
    for one in planned:
        done = finish(sweep, one)
        done.save_provenance(
            dataclasses.replace(done.load_provenance(), code=running_code(Path.cwd()))
        )
    return sweep


def twice(*overrides: str) -> list[Cell]:
    return plan([asked("repeats=2", *overrides)], 0)


def mixed(elsewhere: SweepFolder, *overrides: str) -> list[str]:
    """What a command with these overrides says of the results that stay."""
    cells = twice(*overrides)
    selection = select(cells, elsewhere, cells[0].request.cell.sweep.rerun)
    return refuse_mixing(elsewhere, selection.cells, selection.rerun_ids, {HERE})


def test_what_a_command_names_runs_again_and_the_rest_is_mentioned(elsewhere: SweepFolder) -> None:
    assert mixed(elsewhere, "seed=1", "sweep.rerun=all") == [f"{MIXED} (in 2 cells)"]
    with pytest.raises(ConfigError, match=rf"{DIFFERENT} \(in 4 cells\)"):
        mixed(elsewhere, "seed=3")


def test_repeats_of_one_configuration_stay_of_one_state(elsewhere: SweepFolder) -> None:
    (name,) = (cell.planned.name for cell in twice("seed=1") if cell.planned.repeat == 0)
    with pytest.raises(ConfigError, match=rf"{DIFFERENT} \(in 1 cell\).*with every repeat"):
        mixed(elsewhere, "seed=1", f"sweep.rerun={name}")
    again = mixed(elsewhere, "seed=1", f"sweep.rerun={name}", "sweep.allow_mixed=true")
    assert again == [f"{MIXED} (in 3 cells)"]


def test_the_code_is_that_of_the_tree_whose_state_the_ranks_record(
    elsewhere: SweepFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Typed in a repository of the user's own, a resumed sweep was refused for its commit."""
    for _, cell in elsewhere.cells():
        ours = {"commit": "scalewise's", SOURCE_SHA256: "0" * 64}
        cell.save_provenance(dataclasses.replace(cell.load_provenance(), code=ours))
    monkeypatch.setattr(identity, "scalewise_version", lambda: {SOURCE_SHA256: "0" * 64})
    assert refuse_mixing(elsewhere, twice("seed=3"), (), {THERE}) == []
    monkeypatch.setattr(identity, "scalewise_version", lambda: {SOURCE_SHA256: "1" * 64})
    with pytest.raises(ConfigError, match=r"code: .* 0000000000 there, 1111111111 here"):
        refuse_mixing(elsewhere, twice("seed=3"), (), {THERE})


OWN = ("seed=1", "model._target_=brought_on_path.Net", "dataset=tabular")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of the class in ``OWN``: it lies on PYTHONPATH, outside of every repository."""
    path = tmp_path / "brought_on_path.py"
    path.write_text("FACTOR = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return path


def trained_with_own(cell: CellFolder) -> None:
    code = running_code(Path.cwd(), ["brought_on_path.Net"])
    cell.save_provenance(dataclasses.replace(cell.load_provenance(), code=code))


def test_results_of_other_own_code_are_not_mixed(elsewhere: SweepFolder, module: Path) -> None:
    (_, cell), *_ = elsewhere.cells()
    trained_with_own(cell)

    def found() -> list[str]:
        return refuse_mixing(elsewhere, twice("repeats=3", *OWN), (), {THERE})

    assert found() == [], "the other cell's code is unknown, and not different"
    module.write_text("FACTOR = 100\n")
    with pytest.raises(ConfigError, match=r"your brought_on_path\.py .* \(in 1 cell\)"):
        found()
    assert refuse_mixing(elsewhere, twice("seed=3"), (), {THERE}) == [], "nothing of it is added"


def test_resume_says_it_leaves_older_code(elsewhere: SweepFolder, module: Path) -> None:
    """With nothing to run nothing is mixed, and "was done before" told of no change."""
    own = asked("repeats=2", *OWN)
    # Under the names of those that are done.
    cells = [dataclasses.replace(cell, request=own) for cell in twice("seed=1")]
    for cell in cells:
        trained_with_own(elsewhere.cell(cell.planned.name))

    def said(again: frozenset[str] = frozenset()) -> list[str]:
        return refuse_mixing(elsewhere, cells, again, {THERE})

    assert said() == []
    module.write_text("FACTOR = 100\n")
    (line,) = said()
    assert "brought_on_path.py" in line
    assert "(in 2 cells); sweep.rerun=all" in line
    assert said(frozenset(cell.planned.cell_id for cell in cells)) == [], "they run again"
