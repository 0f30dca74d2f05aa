"""What a wrong command line comes to: one line on stderr, status 2, and nothing left behind."""

import io
import os
import re
import shlex
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from hydra.core.global_hydra import GlobalHydra

from scalewise.cli import hydra_main
from scalewise.cli.exits import Exit, explain
from scalewise.config import ConfigError, conf_dir, options_of
from scalewise.records import SweepFolder, SweepPlan
from scalewise.sweep import SweepReport, compose, engine
from scalewise.sweep.resume import lock_folder

Train = Callable[..., tuple[int, str]]


@pytest.fixture
def train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Train]:
    """``train.py`` in this process; starting any other process fails the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    compose._new_folder.cache_clear()

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError(f"a process was started: {args}")

    monkeypatch.setattr(subprocess, "Popen", refuse)

    def run(*arguments: str) -> tuple[int, str]:
        GlobalHydra.instance().clear()
        hydra_main.sweep_reports.clear()  # a process has one command, and this one many
        monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
        # entry sets it for Hydra; here it must not outlive the call.
        monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
        return hydra_main.train(), capsys.readouterr().err

    yield run
    os.environ.pop("HYDRA_FULL_ERROR", None)
    compose._new_folder.cache_clear()


REFUSED = tomllib.loads(Path(__file__).with_name("refused.toml").read_text())


@pytest.mark.parametrize(("typed", "message"), REFUSED["train"].items(), ids=[*REFUSED["train"]])
def test_wrong_input_is_one_line_and_leaves_nothing(
    typed: str, message: str, train: Train, tmp_path: Path
) -> None:
    status, errors = train(*shlex.split(typed))
    assert (status, errors.count("\n")) == (2, 1)
    assert errors.startswith(f"error: {message}")
    assert {*tmp_path.rglob("*")} <= {tmp_path / "multirun"}


@pytest.fixture(scope="session")
def optuna() -> None:
    """Imported before ``train`` puts a function where its imports want the class ``Popen``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
        pytest.importorskip("optuna.samplers")
        pytest.importorskip("hydra_plugins.hydra_optuna_sweeper._impl")


@pytest.mark.filterwarnings("ignore")  # Optuna's
@pytest.mark.parametrize(("argument", "message"), REFUSED["optuna"].items())
def test_what_optuna_would_trip_over_is_one_line(
    argument: str, message: str, optuna: None, train: Train
) -> None:
    status, errors = train("-m", "hydra/sweeper=optuna", *shlex.split(argument))
    said = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert (status, len(said)) == (2, 1), errors
    assert message in said[0]
    assert "Traceback" not in errors


@pytest.mark.parametrize("sweeper", ["matrix", "basic"])
def test_a_preview_says_that_a_value_was_given_twice(
    train: Train, monkeypatch: pytest.MonkeyPatch, sweeper: str
) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    Path("there").mkdir()
    typed = ("seed=1,1,2", "sweep.dry_run=true", "hydra.sweep.dir=there")
    status, _ = train("-m", f"hydra/sweeper={sweeper}", *typed)
    said = sys.stdout.getvalue()  # type: ignore[attr-defined]
    assert (status, Path("there").exists()) == (0, True), "the folder is the user's"
    assert "2 cells: 0 done, 2 to run" in said
    assert re.search(r"folded: 1 of 3 configurations are the same as .+ \(seed=1\)", said)


def test_a_preview_of_what_this_host_cannot_run_ends_as_its_run_would(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[SweepReport] = []
    for module in (engine, hydra_main):
        monkeypatch.setattr(module, "sweep_reports", runs)
    refused = status, errors = train("hardware=h100")
    assert (status, errors.count("\n")) == (2, 1)
    assert errors.startswith("error: hardware=h100: found no NVIDIA GPU on this host; allowed: ")
    runs.clear()
    assert (train("hardware=h100", "--dry-run"), runs) == (refused, [])
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    status, errors = train("-m", "seed=1,2", "hardware=h100", "--dry-run")
    said = sys.stdout.getvalue()  # type: ignore[attr-defined]
    assert (status, errors) == (Exit.SKIPPED, "")
    assert "2 cells: 0 done, 0 to run, 2 this host cannot run\nnothing can run: " in said


def test_a_traceback_is_there_for_who_asks(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "batch_size=0"])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    GlobalHydra.instance().clear()
    with pytest.raises(ConfigError, match="batch_size"):
        hydra_main.train()


def test_a_folder_of_another_sweep_or_torn_plan_is_refused(train: Train, tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path / "old")
    folder.path.mkdir()
    folder.save_plan(SweepPlan(1.0, (), 0, ()))
    asked = (f"sweep.resume={folder.path}", "dataset.samples=400")
    with lock_folder(folder):
        running = train(*asked)
    folder.plan_path.write_bytes(folder.plan_path.read_bytes()[:20])
    script = ("-m", "experiment=script", "script.command=ls", "precision=fp32", asked[0])
    torn = f"{folder.plan_path}: cannot be read as JSON"
    told = (f"old: found process {os.getpid()}, ", torn, torn)
    for (status, errors), said in zip((running, train(*asked), train(*script)), told, strict=True):
        assert (status, errors.count("\n")) == (2, 1)
        assert errors.startswith(f"error: {said}")


def test_a_launcher_chosen_in_a_swept_experiment_is_refused(train: Train, tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    text = "# @package _global_\ndefaults:\n  - override /hydra/launcher: basic\n"
    (tmp_path / "experiment" / "sneaky.yaml").write_text(text)
    (tmp_path / "experiment" / "plain.yaml").write_text("# @package _global_\nseed: 3\n")
    status, errors = train("--config-dir", str(tmp_path), "-m", "experiment=plain,sneaky")
    assert status == 2
    assert errors.startswith("error: hydra/launcher: found one inside experiment=sneaky, ")


def test_the_configuration_is_printed_and_nothing_is_run(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert train("--cfg", "job", "model=large")[0] == 0
    printed = yaml.safe_load(sys.stdout.getvalue())  # type: ignore[attr-defined]
    assert (printed["model"]["name"], printed["batch_size"]) == ("large", 128)
    assert not (tmp_path / "multirun").exists()


def test_a_folder_that_cannot_be_made_is_one_line(train: Train) -> None:
    status, errors = train("hydra.run.dir=/proc/nowhere")  # not even by root
    assert (status, errors.count("\n")) == (Exit.FAILED, 1)
    assert errors.startswith("error: ")


def test_help_names_the_launchers_and_sweepers_there_are(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        train("--help")
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert all(len(line) <= 80 for line in said.splitlines())
    for group in ("hydra/launcher", "hydra/sweeper"):
        (line,) = [line for line in said.splitlines() if line.startswith(f"{group}: ")]
        named = line.partition(": ")[2].partition(" (")[0].split(", ")
        assert set(options_of(group)) <= set(named)
    for group in (path.name for path in conf_dir().iterdir() if path.is_dir()):
        if group != "hydra":
            words = said.partition(f"\n{group}: ")[2]
            named = re.split(r";|\n\S", words)[0].replace("\n", " ").split(",")
            assert {name.strip() for name in named} == set(options_of(group)) - OF_STUDIES.get(
                group, set()
            )


OF_STUDIES = {
    "hardware": {"seed000"},
    "experiment": {
        "script",  # what `scalewise run` composes
        "agnews_base", "agnews_optimized", "agnews_remedies", "agnews_small",
        "gpt2_finewebedu_a10gx4", "imdb",
        "robocache_scaling", "tensorflow_study", "threshold_study", "threshold_study_cpu",
    },
}  # fmt: skip
"""Options that the first page leaves to docs/workloads.md."""


def test_a_bug_is_not_taken_for_wrong_input() -> None:
    assert explain(RuntimeError("boom")) is None
    assert explain(ValueError("boom")) is None
    try:
        raise ValueError("ours")
    except ValueError as error:
        assert explain(error) is None


@pytest.mark.parametrize(
    ("names", "launcher"),
    [
        ({"RANK": "1", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}, "torchrun"),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0"}, "srun"),
    ],
)
def test_a_further_process_of_another_launcher_stands_down(
    train: Train, monkeypatch: pytest.MonkeyPatch, names: dict[str, str], launcher: str
) -> None:
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    status, errors = train("this=is never looked at")
    assert status == 0
    assert f"process 1 of {launcher}'s 2 stands down" in errors
