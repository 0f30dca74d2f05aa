"""The program of one rank: ``python -m scalewise.doctor.worker <folder>``.

A measurement that fails is recorded as missing, with its reason, and the others go on.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import ExitStack
from functools import partial
from itertools import combinations
from pathlib import Path

import torch

from scalewise.doctor.collectives import RankGroup, measure_all
from scalewise.doctor.compute import gemm_rate, launch_cost, precisions, soak
from scalewise.doctor.copies import copy_rate, cuda_pair, host_copies
from scalewise.doctor.plan import ENV_DEVICE, Plan, RankRecord
from scalewise.gpu import NvmlError, open_nvml
from scalewise.host import ENV_SUPERVISOR, die_with_parent, exit_now
from scalewise.records import CopyKind, DeviceInfo, DeviceSample, build, load_json
from scalewise.train import Team, nccl_version


def main() -> int:
    """Examine this rank's device and return the exit status: 0, or 1 if ranks lost each other."""
    die_with_parent(int(os.environ[ENV_SUPERVISOR]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    folder = Path(sys.argv[1])
    device = build(DeviceInfo, json.loads(os.environ[ENV_DEVICE]))
    if device.cores:
        os.sched_setaffinity(0, device.cores)  # torch starts its threads later, on the same cores
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    plan = load_json(folder / "plan.json", Plan)
    return Examination(plan, folder, rank, size, device).run()


class Examination:
    """The stages of one rank, in an order in which each disturbs the next the least."""

    def __init__(self, plan: Plan, folder: Path, rank: int, size: int, device: DeviceInfo) -> None:
        self.plan, self.budget = plan, plan.budget
        self.info = device
        self.device = torch.device("cpu")
        if device.kind == "cuda":
            self.device = torch.device("cuda", rank)
            torch.cuda.set_device(self.device)
        elif device.cores:
            torch.set_num_threads(len(device.cores))
        self.record = RankRecord(folder / f"rank{rank}.json", rank, self.device)
        found = {
            "torch": str(torch.__version__),
            "cuda": torch.version.cuda,
            "nccl": nccl_version(),
        }
        self.record.note(versions={name: one for name, one in found.items() if one is not None})
        team = self.record.attempt("connection of the ranks", lambda: Team(rank, size))
        self.connected = team is not None
        self.team = team or Team(0, 1)
        self.size = size

    def run(self) -> int:
        with self.record.stage("products of matrices"):
            for precision in precisions(self.device):
                self.team.barrier()  # all at once, as in training
                rate = partial(gemm_rate, self.device, precision, self.budget.gemm_s)
                self.record.add("gemm", f"gemm {precision}", rate)
        with self.record.stage("launches"):
            cost = partial(launch_cost, self.device, self.budget.launch_s)
            self.record.add("launch", "launches", cost)
        with self.record.stage("copies"):
            self._copies()
        apart = not self.connected
        if self.size < 2:
            self.record.miss("collectives and pairs", "they need two devices, and there is one")
        elif self.connected:
            if self.device.type == "cuda":
                with self.record.stage("pairs"):
                    self._pairs()
            with self.record.stage("collectives"):
                apart = not self._collectives()
        if self.plan.soak_s > 0:
            with self.record.stage("soak"):
                self._soak(alone=apart)
        self.record.note(stage="done")
        return 1 if apart and self.size > 1 else 0

    def _copies(self) -> None:
        on_gpu, budget, meet = self.device.type == "cuda", self.budget, self.team.barrier
        kind: CopyKind = "device" if on_gpu else "host"
        size = budget.gpu_memory_bytes if on_gpu else budget.cpu_memory_bytes
        in_memory = partial(copy_rate, kind, self.device, size, budget.copy_s, meet)
        self.record.add("copies", "copy in memory", in_memory)
        if not on_gpu:
            why = "a CPU device is cores of the host and computes in its memory"
            self.record.miss("copies between host and device", why)
        else:
            self.record.release()
            host_copies(self.record, self.team, budget, self.info.uuid, self.device)

    def _pairs(self) -> None:
        budget, team = self.budget, self.team
        for pair in combinations(range(team.size), 2):
            if team.rank == 0:
                rate = partial(cuda_pair, *pair, budget.pair_bytes, budget.pair_s)
                self.record.add("pairs", f"copies between ranks {pair[0]} and {pair[1]}", rate)
            team.barrier()  # after each, so that nobody waits long enough to give up

    def _collectives(self) -> bool:
        """Whether the ranks are still together afterwards."""
        team, budget = self.team, self.budget
        for backend in self.plan.backends(self.device.type):
            together = False  # and stays so where the stage fails
            with self.record.stage(backend):
                if backend == "gloo":
                    ranks = RankGroup(team, backend, torch.device("cpu"), team.gloo)
                else:
                    ranks = RankGroup(team, backend, self.device, team.nccl())
                budget_s = budget.gloo_s if backend == "gloo" else budget.nccl_s
                together = measure_all(self.record, ranks, self.plan.sizes(backend), budget_s)
            if not together:
                return False
        return True

    def _soak(self, *, alone: bool) -> None:
        if not alone:
            self.team.barrier()
        silent, gpu = DeviceSample(self.info.uuid or ""), None
        with ExitStack() as opened:
            try:
                nvml = opened.enter_context(open_nvml())
                gpu = next((g for g in nvml.all_devices() if g.uuid == self.info.uuid), None)
            except NvmlError as error:
                self.record.miss("soak: clocks, temperature, power", str(error))
            read = lambda: silent if gpu is None else nvml.sample(gpu)  # noqa: E731
            result = self.record.attempt("soak", lambda: soak(self.device, self.plan.soak_s, read))
        self.record.note(soak=result)


if __name__ == "__main__":
    exit_now(main())  # tearing down a process group whose peers are gone can hang
