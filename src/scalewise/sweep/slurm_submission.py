"""Cells become jobs: the scripts that sbatch gets, and the arrays that are sent."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence

from scalewise.records import CellFolder, SweepFolder
from scalewise.records.files import save_json
from scalewise.sweep.demand import Demand
from scalewise.sweep.job import Origin
from scalewise.sweep.plan import Cell
from scalewise.sweep.slurm import SlurmConfig, in_arrays, make_executor, script, submit
from scalewise.sweep.slurm_job import CellJob
from scalewise.sweep.slurm_queue import JobState
from scalewise.sweep.slurm_record import Sent, Submission


def print_scripts(
    folder: SweepFolder, config: SlurmConfig, demands: Mapping[Demand, Sequence[Cell]]
) -> None:
    """Write to standard output what would be submitted, one script an array."""
    for wanted, cells in demands.items():
        executor = make_executor(folder.path.resolve(), config, wanted)
        for part in in_arrays(len(cells)):
            names = "".join(f"#   {i}: {cells[j].planned.name}\n" for i, j in enumerate(part))
            text = script(executor, len(part))
            sys.stdout.write(f"# {wanted} each, by array task:\n{names}{text}\n")


def send(
    folder: SweepFolder, config: SlurmConfig, cells: Sequence[Cell], wanted: Demand
) -> list[Sent]:
    """Submit cells of one demand as one array, its tasks in the order of the plan.

    Raises :class:`HostMismatch` where SLURM refuses it.
    """
    executor = make_executor(folder.path.resolve(), config, wanted)
    folders = [folder.cell(cell.planned.name) for cell in cells]
    first = [one.next_attempt_number() for one in folders]
    jobs = submit(executor, _jobs(cells, folders, wanted, config))
    sent = []
    for cell, own, number, job in zip(cells, folders, first, jobs, strict=True):
        submission = Submission(job.job_id, time.time(), number, wanted, str(job.paths.stdout))
        save_json(own.path / "slurm.json", submission)
        sent.append(Sent(cell, own, submission, JobState("PENDING")))
    return sent


def _jobs(
    cells: Sequence[Cell], folders: Sequence[CellFolder], wanted: Demand, config: SlurmConfig
) -> list[CellJob]:
    origin = Origin.of_this_process()
    return [
        CellJob(
            folder=str(folder.path.resolve()),
            cell=cell.planned,
            wanted=wanted,
            time_min=config.time_min,
            signal_delay_s=config.signal_delay_s,
            cwd=origin.cwd,
            python_path=origin.python_path,
            command=origin.command,
        )
        for cell, folder in zip(cells, folders, strict=True)
    ]
