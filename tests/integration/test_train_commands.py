"""The commands of the README, from wherever they are typed."""

import importlib.resources
import json
import os
import shutil
from pathlib import Path

import pytest
import yaml

from fakes.proofs import AUTO_STRATEGY, check_decision
from fakes.train_command import LEAN, ROOT, SMALL, Finished, Train
from scalewise.analysis.balance import audit_shards
from scalewise.config import conf_dir
from scalewise.host import usable_cores
from scalewise.records import SweepFolder, read_metrics, read_shard, read_steps

_WATCH = """
import atexit, json, os, subprocess, sys

def _write(kind):
    names = sorted(n for n in sys.modules if n.partition(".")[0] == "scalewise")
    with open(f"{os.environ['MODULES_FOLDER']}/{kind}-{os.getpid()}.json", "w") as file:
        json.dump({"command": sys.orig_argv, "modules": names}, file)

atexit.register(_write, "end")
_exit = os._exit

def _exit_at_once(status):  # ranks end like this
    _write("end")
    _exit(status)

os._exit = _exit_at_once
_start = subprocess.Popen.__init__

def _watched(self, args, *rest, **named):
    if any("scalewise.supervisor" in str(word) for word in args):
        _write("first_cell")
        subprocess.Popen.__init__ = _start
    _start(self, args, *rest, **named)

subprocess.Popen.__init__ = _watched
"""


@pytest.fixture(scope="module")
def sweep(shared_train: Train) -> Finished:
    """The issue's own command, its arguments in another order, from another folder.

    Each process of it leaves the names of our modules that it has imported. Ranks run under other
    programs: `env` becomes the rank itself; `timeout` stays above it as a profiler would.
    """
    folder = shared_train.cwd.parent / "modules"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_WATCH)
    path = os.pathsep.join([str(folder), shared_train.environment["PYTHONPATH"]])
    shared_train.environment |= {"PYTHONPATH": path, "MODULES_FOLDER": str(folder)}
    sampled = [word for word in SMALL if not word.startswith("monitor")]
    wrap = "hydra.launcher.wrap='timeout --foreground 100 env CELL={folder} WRAPPED_RANK={rank}'"
    return shared_train("strategy=ddp,single", *sampled, "model=large", "-m", wrap)


@pytest.fixture(scope="module")
def imported(sweep: Finished, shared_train: Train) -> dict[str, set[str]]:
    """Modules of ours by kind of process: first_cell, sweep, supervisor, rank."""
    found: dict[str, set[str]] = {}
    for path in Path(shared_train.environment["MODULES_FOLDER"]).glob("*.json"):
        written = json.loads(path.read_text())
        found.setdefault(_kind(path, written["command"]), set()).update(written["modules"])
    return found


def test_a_matrix_is_trained_and_answered(sweep: Finished) -> None:
    assert sweep.status == 0, sweep.err
    cells = sweep.by_strategy()
    assert set(cells) == {"single", "ddp"}
    single, ddp = cells["single"].load_result(), cells["ddp"].load_result()
    assert (single.world_size, ddp.world_size) == (1, 2)
    assert (single.global_batch_size, ddp.global_batch_size) == (16, 16)
    assert (single.per_device_batch_size, ddp.per_device_batch_size) == (16, 8)
    assert "2/2" in sweep.err or "done     large" in sweep.err
    assert "large ddp x2" in sweep.out
    assert (sweep.sweep.report_path / "report.md").is_file()


def test_each_cell_ran_in_processes_of_its_own_on_its_share(sweep: Finished) -> None:
    ranks = [rank for f in sweep.by_strategy().values() for rank in f.load_result().ranks]
    assert len({rank.pid for rank in ranks}) == 3
    assert len({rank.device.cores for rank in ranks}) == 2
    assert len({len(rank.device.cores) for rank in ranks}) == 1
    for rank in ranks:
        assert rank.parameters_total == 2_021_379
        assert rank.steps_completed == rank.step_rows == 12


def test_steps_samples_and_what_a_cell_depends_on_are_on_record(sweep: Finished) -> None:
    folder = sweep.by_strategy()["ddp"]
    for rank in range(2):
        series = read_steps(folder.steps_path(rank), rank)
        assert ((len(series), len(series.timed())), set(series.rows["samples"])) == ((12, 10), {8})
        assert (series.column("exposed_comm") >= 0).all()
        assert (series.column("arrival") <= series.column("step")).all()
    shards = [read_shard(folder.shard_path(rank), rank) for rank in range(2)]
    audit = audit_shards(shards, 2, 16)
    assert (audit.verdict, audit.overlapping_samples) == ("sharded", 0)
    assert [len(s.indices) for s in shards] == [96, 96]
    provenance = folder.load_provenance()
    assert {"-m", "model=large"} <= set(provenance.command)
    assert (len(provenance.devices), provenance.environment["OMP_NUM_THREADS"]) == (2, "1")
    assert folder.load_config()["model"]["name"] == "large"
    assert "val_loss" in read_metrics(folder.metrics_path(0))[-1].values


def _kind(path: Path, command: list[str]) -> str:
    if path.name.startswith("first_cell"):
        return "first_cell"
    words = " ".join(command)
    for kind, part in (("supervisor", "scalewise.supervisor"), ("rank", "scalewise.sweep.worker")):
        if part in words:
            return kind
    return "sweep" if "train.py" in words else "other"


@pytest.mark.parametrize(("kind", "most"), [("first_cell", 90), ("supervisor", 30), ("rank", 120)])
def test_a_process_imports_few_modules(imported: dict[str, set[str]], kind: str, most: int) -> None:
    assert 0 < len(imported[kind]) <= most


def test_a_sweep_with_its_report_passes_through_few_modules(imported: dict[str, set[str]]) -> None:
    assert len(imported["first_cell"] | imported["supervisor"] | imported["rank"]) <= 121
    assert len(set().union(*imported.values())) <= 189


def test_two_sweeps_in_one_second_share_nothing_and_odd_values_arrive_unharmed(
    train: Train, own_code: Path
) -> None:
    """``--config-dir``, ``--config-name``, quotes, spaces, commas and ``=``, in one of them.

    Beside it lie a user's ``queue.py``, ``token.py`` and ``scalewise.py``: none of our business.
    """
    for name in ("queue", "token", "scalewise"):
        (own_code / f"{name}.py").write_text("raise RuntimeError('shadowed')\n")
    odd = 'it\'s a "b", c=d; $HOME {x} [y] ü'
    mine = own_code / "my conf"
    (mine / "experiment").mkdir(parents=True)
    (mine / "main.yaml").write_text("defaults:\n  - config\n  - _self_\nseed: 7\n")
    (mine / "experiment" / "odd.yaml").write_text("# @package _global_\nbatch_size: 20\n")
    quoted = odd.replace("'", "\\'")
    command = (
        *LEAN, "--config-dir", str(mine), "--config-name=main", "experiment=odd",
        "model._target_=mine.Net", f"++model.note='{quoted}'", "dataset._target_=mine.Data",
    )  # fmt: skip
    for process in [train.start(*typed, cwd=own_code) for typed in (command, SMALL)]:
        _, err = process.communicate(timeout=train.patience_s)
        assert process.returncode == 0, err
    folders = train.sweeps(own_code)
    assert len(folders) == 2
    cells = [folder for sweep in folders for _, folder in SweepFolder(sweep).cells()]
    first, second = sorted((cell.load_result() for cell in cells), key=lambda r: r.started_at)
    shared = set(first.ranks[0].device.cores) & set(second.ranks[0].device.cores)
    assert not shared or first.finished_at <= second.started_at
    configs = [cell.load_config() for cell in cells]
    (config,) = (one for one in configs if one["model"].get("_target_") == "mine.Net")
    assert (config["model"]["note"], config["seed"], config["batch_size"]) == (odd, 7, 20)


@pytest.mark.skipif(len(usable_cores()) < 2, reason="needs two cores")
def test_the_better_strategy_is_trained_and_says_why(train: Train) -> None:
    check_decision(train(*AUTO_STRATEGY, "hardware=cpu", "hydra.launcher.warm=true"))


def test_the_tab_key_completes(train: Train) -> None:
    line = "python train.py model=la"
    run = train("-sc", "query=bash", COMP_LINE=line, COMP_POINT=str(len(line)))
    assert run.status == 0, run.err
    assert run.out.split() == ["model=large"]


def test_optuna_gets_the_objective_and_what_holds_for_all_is_said_once(train: Train) -> None:
    run = train(
        *SMALL, "-m", "hydra/sweeper=optuna", "hydra.sweeper.n_trials=4", "hydra.sweeper.n_jobs=2",
        "optimizer.lr=choice(0.001)",
    )  # fmt: skip
    assert run.status == 0, run.err
    loss = run.only_cell().load_result().ranks[0].metrics["val_loss"]
    found = yaml.safe_load((run.sweep.path / "optimization_results.yaml").read_text())
    assert found["best_value"] == pytest.approx(loss)
    assert (run.out + run.err).count("folded: 1 of 2 configurations") == 1


def test_the_shipped_configuration_is_complete_beside_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wheel holds ``conf`` inside the package; a copy laid out so finds it there."""
    package = tmp_path / "scalewise"
    package.mkdir()
    shutil.copytree(ROOT / "conf", package / "conf")
    monkeypatch.setattr(importlib.resources, "files", lambda name: tmp_path / name)
    assert conf_dir() == package / "conf"
