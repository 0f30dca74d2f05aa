"""A cell that was killed runs anew as if nothing had happened."""

from pathlib import Path

from fakes.restart import RESTARTING, check_ran_anew
from fakes.train_command import Train


def test_a_cell_whose_rank_was_killed_once_runs_anew(train: Train, own_code: Path) -> None:
    faults = "+model.fault=none,sigkill_once"
    run = train(*RESTARTING, faults, "monitor.devices=false", "-m", cwd=own_code)
    assert run.status == 0, run.err
    assert "rank 1 was ended by SIGKILL" in run.err
    assert "retry 1 of 1" in run.err
    cells = {cell.load_config()["model"]["fault"]: cell for _, cell in run.cells().values()}
    check_ran_anew(cells["none"], cells["sigkill_once"], rel=0)
