"""A pipe where a record should be: whoever reads the folder says so, and waits for nobody."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from fakes.recorded_cell import RecordedCell, plan_sweep
from scalewise.analysis.load import load_sweep
from scalewise.cli import main
from scalewise.records import HeartbeatWriter, RunningAttempt, ShardIndices, write_shard
from scalewise.records.files import IrregularFileError, open_record
from scalewise.records.quarantine import Quarantine, save_quarantine

pytestmark = pytest.mark.timeout(60)

SAID = "it is no regular file but a FIFO; remove it"
READ_BY_STATUS = {
    "sweep.json",
    "quarantine.json",
    "done/result.json",
    "done/steps/rank0.bin",
    "done/steps/rank1.bin",
    "failed/attempts/1.json",
    "running/running.json",
    "running/heartbeat/rank0",
    "running/heartbeat/rank1",
}


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Three cells: one is done, one runs and one has failed."""
    folder = plan_sweep(tmp_path / "sweep", ["done", "running", "failed"])
    done, running, failed = (RecordedCell(cell) for _, cell in folder.cells())
    for cell in (done, running, failed):
        cell.train(30)
        audit = ShardIndices(0, np.arange(4), dataset_size=4, epoch_complete=True)
        write_shard(cell.folder.shard_path(0), audit)
        cell.close()
    done.succeed()
    failed.fail()
    running.folder.save_running(RunningAttempt(1, time.time(), tuple(running.devices)))
    for rank in range(running.ranks):
        writer = HeartbeatWriter(running.folder.heartbeat_path(rank))
        writer.begin(100)
        writer.close()
    save_quarantine(folder.path, Quarantine())
    return folder.path


def test_neither_pipe_nor_device_is_opened(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(IrregularFileError, match="no regular file but a FIFO"):
        open_record(pipe)
    link = tmp_path / "link"
    link.symlink_to("/dev/zero")
    with pytest.raises(IrregularFileError, match="no regular file but a character device"):
        open_record(link)


def test_every_reader_names_the_pipe_and_none_waits(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = {str(p.relative_to(sweep)): p for p in sweep.rglob("*") if p.is_file()}
    assert records.keys() > READ_BY_STATUS
    for name, path in records.items():
        kept = path.rename(path.with_name("kept.aside"))
        os.mkfifo(path)
        loaded = load_sweep(sweep)  # what a report and a comparison read
        problems = [*loaded.problems, *(p for cell in loaded.cells for p in cell.problems)]
        # How far a cell is that runs, they take from its first rank.
        assert any(SAID in p for p in problems) == (name != "running/heartbeat/rank1"), name
        main(["status", str(sweep)])
        said = capsys.readouterr()
        lines = [line for line in (said.out + said.err).splitlines() if SAID in line]
        assert len(lines) == (name in READ_BY_STATUS), name
        path.unlink()
        kept.rename(path)
