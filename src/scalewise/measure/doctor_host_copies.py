"""Copies between the host and every GPU: each rank alone, then all ranks together."""

from __future__ import annotations

from functools import partial

import torch

from scalewise.gpu.nvml import open_nvml
from scalewise.measure.copy_rates import STAGING, HostStaging, Staging
from scalewise.measure.doctor_devices import pcie_link
from scalewise.measure.doctor_plan import Plan
from scalewise.measure.doctor_record import RankRecord
from scalewise.measure.doctor_team import Team
from scalewise.records import DeviceInfo

_PCIE_S = 0.05
"""Copies under way while the PCIe link is read."""


class HostCopies:
    """A stage of one rank's examination; every rank has to run it.

    Args:
        record: where rates and failures go.
        team: the ranks that take turns.
        plan: how long and how much.
        info: this rank's GPU, for NVML.
        device: the same, for torch.
    """

    def __init__(
        self, record: RankRecord, team: Team, plan: Plan, info: DeviceInfo, device: torch.device
    ) -> None:
        self._record = record
        self._team = team
        self._plan = plan
        self._uuid = info.uuid
        self._device = device

    def run(self) -> None:
        """Every kind in turns; then, where there are several ranks, the pinned ones at once."""
        staging = self._record.attempt(
            "host staging", lambda: HostStaging(self._device, self._plan.staging_bytes)
        )
        for turn in range(self._team.size):
            if turn == self._team.rank and staging is not None:
                self._alone(staging)
            self._team.barrier()
        if self._team.size > 1:
            self._together(staging)

    def _alone(self, staging: HostStaging) -> None:
        for kind in STAGING:
            if self._prepare(staging, kind):
                self._measure(staging, kind, together=False)
        self._record.attempt("PCIe link", partial(self._read_pcie, staging))

    def _together(self, staging: HostStaging | None) -> None:
        """A rank whose buffers failed comes to the barriers all the same."""
        for kind in STAGING[:2]:  # pinned
            ready = staging is not None and self._prepare(staging, kind)
            self._team.barrier()
            if ready and staging is not None:
                self._measure(staging, kind, together=True)

    def _prepare(self, staging: HostStaging, kind: Staging) -> bool:
        def prepared() -> bool:
            staging.prepare(kind)
            return True

        return self._record.attempt(kind, prepared) is True

    def _measure(self, staging: HostStaging, kind: Staging, *, together: bool) -> None:
        rate = self._record.attempt(
            f"{kind} {'together' if together else 'alone'}",
            lambda: staging.measure(kind, self._plan.staging_s, together=together),
        )
        if rate is not None:
            self._record.note(copies=(*self._record.found.copies, rate))

    def _read_pcie(self, staging: HostStaging) -> None:
        uuid = self._uuid
        if uuid is None:
            return
        with open_nvml() as nvml:  # takes longer than the copies, so it comes first
            staging.while_copying(lambda: self._record.note(pcie=pcie_link(nvml, uuid)), _PCIE_S)
