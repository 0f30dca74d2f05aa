"""How a script ended, in its own words."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fakes.recorded import rank_summary
from scalewise.config import ConfigError, ending_of
from scalewise.records import (
    CellFolder,
    DeviceInfo,
    Ending,
    HeartbeatWriter,
    PlannedCell,
    SweepFolder,
    SweepPlan,
)
from scalewise.supervisor.failures import asked_for_torchrun, name_script_end
from scalewise.supervisor.ranks import RankProcess

RAISED = 'Traceback (most recent call last):\n  File "/home/me/train.py", line 3, in <module>\n'
OURS = "scalewise.config.errors.ConfigError: "
TORCHRUN = f"{RAISED}KeyError: 'LOCAL_RANK'\n"
ENDED = Ending("failed", "exit", "rank 0 exited with status 1; see logs/", 0, 1)
DONE = Ending("done")


@pytest.fixture
def folder(tmp_path: Path) -> CellFolder:
    """Of the first of three runs, two on one device."""
    cells = tuple(
        PlannedCell(name, "config", name, (), repeat, devices)
        for repeat, (name, devices) in enumerate([("mine", 1), ("wide", 2), ("other", 1)])
    )
    sweep = SweepFolder(tmp_path)
    sweep.save_plan(SweepPlan(0.0, (), 0, cells))
    return sweep.cell("mine")


def named(
    folder: CellFolder, ending: Ending, log: str = "", world_size: int = 1, again: bool = False
) -> Ending:
    path = folder.log_path(0, "err")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(log)
    job: Any = SimpleNamespace(world_size=world_size)
    processes = [RankProcess(0, 1, ending.exit_code)]
    ranks: Any = SimpleNamespace(processes=processes, as_torchrun=again)
    return name_script_end(ending, job, folder, ranks)


@pytest.mark.parametrize(
    ("log", "said", "cause"),
    [
        ("usage: train.py\ntrain.py: error: no --data\n", "train.py: error: no --data", "config"),
        (f"{RAISED}ValueError: two\nlines of it\n", "ValueError: two", "exit"),
        (f"{RAISED}[rank0]: ValueError: two\n[rank0]: lines\n", "1: ValueError: two", "exit"),
        ("", "rank 0 exited with status 1 and said nothing", "config"),
        (f"{RAISED}{OURS}rehearse: found send", "rehearse: found send", "config"),
    ],
)
def test_its_last_words_are_the_reason(folder: CellFolder, log: str, said: str, cause: str) -> None:
    ending = named(folder, ENDED, log)
    assert ending.cause == cause
    assert ending.message.endswith(said)


def test_one_that_wants_torchrun_is_tried_again_with_its_variables(folder: CellFolder) -> None:
    assert named(folder, ENDED, TORCHRUN).cause == "launcher"
    assert named(folder, ENDED, TORCHRUN, world_size=2).cause == "exit"
    assert named(folder, ENDED, TORCHRUN, again=True).cause == "exit", "it has them"
    HeartbeatWriter(folder.heartbeat_path(0)).close()
    assert named(folder, ENDED, TORCHRUN).cause == "exit"


def test_one_that_trains_nothing_is_named_although_it_ended_well(folder: CellFolder) -> None:
    ending = named(folder, DONE)
    assert (ending.outcome, ending.cause, ending.exit_code) == ("failed", "config", 0)
    assert "no optimizer of torch.optim was stepped;" in ending.message
    folder.log_path(0, "out").write_text("too few GPUs\n\n")
    assert "was stepped: 'too few GPUs';" in named(folder, DONE).message


def test_one_that_trains_nothing_after_another_may_go_on_from_it(
    folder: CellFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CellFolder, "is_done", lambda self, _: self.name == "wide")
    assert "it may go on from what that left" in named(folder, DONE).message


def test_the_first_cell_on_one_device_tells_who_needs_torchrun(
    folder: CellFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def is_done(folder: CellFolder, cell_id: str) -> bool:
        asked.append(folder.name)
        return True

    monkeypatch.setattr(CellFolder, "is_done", is_done)
    sweep = SweepFolder(folder.path.parent)
    assert not asked_for_torchrun(sweep.cell("wide"))
    assert asked == ["mine"]
    sweep.cell("mine").save_attempt(replace(ENDED, cause="launcher"))
    assert asked_for_torchrun(sweep.cell("wide"))


def test_a_rank_that_has_ended_before_the_others_is_named(folder: CellFolder) -> None:
    folder.save_rank(rank_summary(1, DeviceInfo("cpu", "a CPU"), 60, 16, metric_rows=0))
    job: Any = SimpleNamespace(world_size=2)
    ranks: Any = SimpleNamespace(processes=[RankProcess(0, 1, 1), RankProcess(1, 2, 0)])
    lost = Ending("failed", "peer", "rank 0: Connection closed by peer", 0, 1)
    ending = name_script_end(lost, job, folder, ranks)
    assert ending.message.startswith("rank 1 ended by itself after 60 steps, and rank 0 went on")
    assert ending.cause == "config"


def test_one_that_left_by_os_exit_is_told_how_far_it_came(folder: CellFolder) -> None:
    heart = HeartbeatWriter(folder.heartbeat_path(0))
    heart.beat(28, 56)
    heart.close()
    assert "left by os._exit after 28 steps or more" in named(folder, DONE).message


def test_what_a_process_of_its_own_died_of_goes_before(folder: CellFolder) -> None:
    folder.save_rank_error(ending_of(ConfigError("it starts ranks itself"), 0))
    ending = named(folder, DONE)
    assert (ending.cause, ending.message) == ("config", "rank 0: it starts ranks itself")
    folder.save_rank(rank_summary(0, DeviceInfo("cpu", "a CPU"), 60, 16, metric_rows=0))
    assert named(folder, DONE).cause == "config", "its parent trained too"
