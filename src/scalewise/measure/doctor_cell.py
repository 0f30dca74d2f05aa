"""An examination as a cell of a sweep, so that what the devices can do lies beside the cells.

The first rank examines all devices of the cell and writes ``doctor.json`` into its folder; the
others leave them alone. Nothing is trained: there are no steps, and no metrics but the findings.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from scalewise.measure.doctor import examine
from scalewise.measure.doctor_plan import Plan
from scalewise.measure.untrained import untrained_summary
from scalewise.records import CellFolder, DeviceInfo, RankSummary
from scalewise.records.doctor import DoctorReport, save_doctor

if TYPE_CHECKING:
    from scalewise.train.rank import RankContext

_WHY = "workload=doctor: the devices were examined, nothing was trained"


def examine_cell(
    folder: CellFolder,
    rank: RankContext,
    slots: Sequence[DeviceInfo],
    driver: str | None,
    plan: Plan | None = None,
) -> RankSummary:
    """This rank's part of the examination of ``slots``, and the summary it leaves.

    Raises ValueError for a cell on several hosts: each would need a record of its own.
    """
    if rank.hosts > 1:
        raise ValueError(
            f"workload: found doctor on {rank.hosts} hosts; allowed: one host a cell "
            "(strategy.devices up to the devices of one)"
        )
    found: dict[str, float | None] = {}
    if rank.is_first:
        # It looks at the whole share of the cell; its own ranks bind themselves again.
        cores = {core for slot in slots for core in slot.cores}
        if cores:
            os.sched_setaffinity(0, cores)
        report = examine(plan or Plan(), slots, driver)
        save_doctor(folder.path, report)
        found = _counts(report)
    summary = untrained_summary(rank, found, _WHY)
    folder.save_rank(summary)
    return summary


def _counts(report: DoctorReport) -> dict[str, float | None]:
    severities = Counter(finding.severity for finding in report.findings)
    return {
        "doctor_faults": float(severities["fault"]),
        "doctor_warnings": float(severities["warning"]),
        "doctor_seconds": report.duration_s,
    }
