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

from scalewise.doctor.collectives import measure_all
from scalewise.doctor.compute import gemm_rate, launch_cost, precisions, soak
from scalewise.doctor.copies import copy_rate, cuda_pair, host_copies
from scalewise.doctor.plan import ENV_DEVICE, Plan, RankRecord
from scalewise.gpu import NvmlError, open_nvml
from scalewise.host import ENV_SUPERVISOR, die_with_parent, exit_now
from scalewise.records import Backend, CopyKind, DeviceInfo, DeviceSample, build, load_json
from scalewise.train import Team, nccl_version


def main() -> int:
    """Examine this rank's device and return the exit status: 0, or 1 if ranks lost each other."""
    die_with_parent(int(os.environ[ENV_SUPERVISOR]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    folder = Path(sys.argv[1])
    device = build(DeviceInfo, json.loads(os.environ[ENV_DEVICE]))
    if device.cores:
        os.sched_setaffinity(0, device.cores)  # torch starts its threads later, on the same cores
    place = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return Examination(load_json(folder / "plan.json", Plan), folder, *place, device).run()


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
        versions = {"torch": str(torch.__version__)}
        of_gpus = ("cuda", torch.version.cuda), ("nccl", nccl_version())
        self.record.note(versions=versions | {name: one for name, one in of_gpus if one})
        team = self.record.attempt("connection of the ranks", lambda: Team(rank, size))
        self.connected = team is not None
        self.team = team or Team(0, 1)
        self.size = size

    def run(self) -> int:
        record, cost = self.record, partial(launch_cost, self.device, self.budget.launch_s)
        record.stage("products of matrices", self._products)
        record.stage("launches", lambda: record.add("launch", "launches", cost))
        record.stage("copies", self._copies)
        apart = not self.connected
        if self.size < 2:
            record.miss("collectives and pairs", "they need two devices, and there is one")
        elif self.connected:
            if self.device.type == "cuda":
                record.stage("pairs", self._pairs)
            apart = not record.stage("collectives", self._collectives)
        if self.plan.soak_s > 0:
            record.stage("soak", partial(self._soak, alone=apart))
        record.note(stage="done")
        return int(apart)

    def _products(self) -> None:
        for precision in precisions(self.device):
            self.team.barrier()  # all at once, as in training
            rate = partial(gemm_rate, self.device, precision, self.budget.gemm_s)
            self.record.add("gemm", f"gemm {precision}", rate)

    def _copies(self) -> None:
        on_gpu, budget, meet = self.device.type == "cuda", self.budget, self.team.barrier
        kind: CopyKind = "device" if on_gpu else "host"
        size = budget.gpu_memory_bytes if on_gpu else budget.cpu_memory_bytes
        in_memory = partial(copy_rate, kind, self.device, size, budget.copy_s, meet)
        self.record.add("copies", "copy in memory", in_memory)
        if on_gpu:
            self.record.release()
            host_copies(self.record, self.team, budget, self.info.uuid, self.device)
        else:
            why = "a CPU device is cores of the host and computes in its memory"
            self.record.miss("copies between host and device", why)

    def _pairs(self) -> None:
        budget, team = self.budget, self.team
        for pair in combinations(range(team.size), 2):
            if team.rank == 0:
                rate = partial(cuda_pair, *pair, budget.pair_bytes, budget.pair_s)
                self.record.add("pairs", f"copies between ranks {pair[0]} and {pair[1]}", rate)
            team.barrier()  # after each, so that nobody waits long enough to give up

    def _collectives(self) -> bool:
        """Whether the ranks are still together afterwards."""
        limits_s: dict[Backend, float] = {"nccl": self.budget.nccl_s, "gloo": self.budget.gloo_s}
        if self.device.type != "cuda":
            del limits_s["nccl"]  # gloo runs in host memory everywhere
        measured = partial(measure_all, self.record, self.team)
        each = ((one, self.plan.sizes(one), limit_s) for one, limit_s in limits_s.items())
        return all(self.record.stage(one[0], partial(measured, *one)) for one in each)

    def _soak(self, *, alone: bool) -> None:
        if not alone:
            self.team.barrier()
        silent, gpu = DeviceSample(self.info.uuid or ""), None
        with ExitStack() as opened:
            try:
                nvml = opened.enter_context(open_nvml())
                gpu = next((g for g in nvml.devices() if g.uuid == self.info.uuid), None)
            except NvmlError as error:
                self.record.miss("soak: clocks, temperature, power", str(error))
            read = lambda: silent if gpu is None else nvml.sample(gpu)  # noqa: E731
            result = self.record.attempt("soak", lambda: soak(self.device, self.plan.soak_s, read))
        self.record.note(soak=result)


if __name__ == "__main__":
    exit_now(main())  # tearing down a process group whose peers are gone can hang
