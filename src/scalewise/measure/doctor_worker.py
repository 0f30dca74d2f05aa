"""What one rank of ``scalewise doctor`` runs.

    python -m scalewise.measure.doctor_worker <folder>

It measures in stages and rewrites ``rank<r>.json`` after each, so that a crash or a hang in one
leaves what came before. A measurement that fails is recorded as missing, with its reason. Device
memory is handed back between stages.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from scalewise.measure.doctor_plan import ENV_DEVICE, ENV_PARENT, Plan, load_plan
from scalewise.records import DeviceInfo, DeviceSample
from scalewise.records.doctor import Backend, RankMeasurements
from scalewise.records.files import save_json
from scalewise.typed import build

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Examine this rank's device and return the exit status: 0, or 1 if ranks lost each other."""
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    folder = Path(sys.argv[1])
    device = build(DeviceInfo, json.loads(os.environ[ENV_DEVICE]))
    if device.cores:
        # Before torch is imported: it counts the cores then.
        os.sched_setaffinity(0, device.cores)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return Examination(load_plan(folder), folder, rank, size, device).run()


class Examination:
    """The stages of one rank, in an order in which each disturbs the next the least."""

    def __init__(self, plan: Plan, folder: Path, rank: int, size: int, device: DeviceInfo) -> None:
        import torch

        from scalewise.measure.doctor_team import Team

        self.plan = plan
        self.info = device
        self.found = RankMeasurements(rank, "start")
        self._path = folder / f"rank{rank}.json"
        self.device = torch.device("cpu")
        if device.kind == "cuda":
            self.device = torch.device("cuda", rank)
            torch.cuda.set_device(self.device)
        elif device.cores:
            torch.set_num_threads(len(device.cores))
        self._note(versions=_versions())
        team = self._attempt("connection of the ranks", lambda: Team(rank, size))
        self.connected = team is not None
        self.team = team or Team(0, 1)
        self.rank, self.size = rank, size

    def run(self) -> int:
        with self._stage("products of matrices"):
            self._gemm()
        with self._stage("launches"):
            self._launches()
        with self._stage("copies"):
            self._copies()
        apart = not self.connected
        if self.size < 2:
            self._miss("collectives and pairs", "they need two devices, and there is one")
        elif self.connected:
            with self._stage("pairs"):
                self._pairs()
            with self._stage("collectives"):
                apart = not self._collectives()
        if self.plan.soak_s > 0:
            with self._stage("soak"):
                self._soak(alone=apart)
        self._note(stage="done")
        return 1 if apart and self.size > 1 else 0

    # Stages

    def _gemm(self) -> None:
        from scalewise.measure import ceilings

        for precision in ceilings.precisions(self.device):
            self.team.barrier()  # all at once, as in training
            rate = self._attempt(
                f"gemm {precision}",
                partial(ceilings.gemm_rate, self.device, precision, self.plan.gemm_s),
            )
            if rate is not None:
                self._note(gemm=(*self.found.gemm, rate))

    def _launches(self) -> None:
        from scalewise.measure import ceilings

        launch = self._attempt(
            "launches", lambda: ceilings.launch_costs(self.device, self.plan.launch_s)
        )
        self._note(launch=launch or ())

    def _copies(self) -> None:
        from scalewise.measure import ceilings

        plan = self.plan
        self.team.barrier()
        copy = self._attempt(
            "copy in memory",
            lambda: ceilings.memory_copy(
                self.device, plan.memory_bytes(self.device.type), plan.copy_s
            ),
        )
        if copy is not None:
            self._note(copies=(*self.found.copies, copy))
        if self.device.type == "cuda":
            self._release()
            self._staging()

    def _staging(self) -> None:
        from scalewise.measure import ceilings

        staging = self._attempt(
            "host staging", lambda: ceilings.HostStaging(self.device, self.plan.staging_bytes)
        )

        def copy(kind: ceilings.Staging, together: bool) -> None:
            if staging is None:
                return
            name = f"{kind} {'together' if together else 'alone'}"
            rate = self._attempt(
                name, lambda: staging.measure(kind, self.plan.staging_s, together=together)
            )
            if rate is not None:
                self._note(copies=(*self.found.copies, rate))

        for turn in range(self.team.size):
            if turn == self.team.rank:
                for kind in ceilings.STAGING:
                    copy(kind, together=False)
                if staging is not None:
                    self._attempt("PCIe link", lambda: staging.while_copying(self._read_pcie, 0.02))
            self.team.barrier()
        if self.team.size > 1:
            for kind in ("h2d_pinned", "d2h_pinned"):
                self.team.barrier()
                copy(kind, together=True)

    def _read_pcie(self) -> None:
        from scalewise.measure.doctor_devices import pcie_link

        if self.info.uuid is not None:
            self._note(pcie=pcie_link(self.info.uuid))

    def _pairs(self) -> None:
        from itertools import combinations

        from scalewise.measure.doctor_pairs import cuda_pair, gloo_pairs

        plan, team = self.plan, self.team
        if self.device.type == "cuda":
            if team.rank == 0:
                for first, second in combinations(range(team.size), 2):
                    rate = self._attempt(
                        f"copies between ranks {first} and {second}",
                        partial(cuda_pair, first, second, plan.pair_bytes, plan.pair_s),
                    )
                    if rate is not None:
                        self._note(pairs=(*self.found.pairs, rate))
            self._release()
            team.barrier()
            return
        rates = gloo_pairs(team, plan.gloo_pair_bytes, plan.gloo_pairs_s)
        if team.rank == 0:
            self._note(pairs=rates)

    def _collectives(self) -> bool:
        """Whether the ranks are still together afterwards."""
        import torch

        cpu = torch.device("cpu")
        for backend in self.plan.backends(self.device.type):
            together = False  # and stays so where the stage fails
            with self._stage(backend):
                together = self._series(backend, cpu if backend == "gloo" else self.device)
            if not together:
                return False
        return True

    def _series(self, backend: Backend, device: torch.device) -> bool:
        from scalewise.measure.collectives import measure_all

        plan, team = self.plan, self.team
        group = team.gloo if backend == "gloo" else team.nccl()
        series = measure_all(
            team, backend, plan.sizes(backend), plan.collectives_s(backend), device, group
        )
        if team.rank == 0:
            self._note(collectives=(*self.found.collectives, *series.rates))
        if team.rank == 0 or series.broken:
            for key, reason in series.missing.items():
                self._miss(key, reason)
        return series.broken is None

    def _soak(self, *, alone: bool) -> None:
        from scalewise.measure.doctor_soak import soak

        if not alone:
            self.team.barrier()
        with self._reader() as read:
            result = self._attempt("soak", lambda: soak(self.device, self.plan.soak_s, read))
        self._note(soak=result)

    @contextmanager
    def _reader(self) -> Iterator[Callable[[], DeviceSample | None]]:
        """A function that reads this rank's GPU, or one that has nothing to say."""
        from scalewise.gpu.nvml import NvmlError, open_nvml

        try:
            nvml = open_nvml()
        except NvmlError as error:
            self._miss("soak: clocks, temperature, power", str(error))
            yield lambda: None
            return
        with nvml:
            gpu = next((g for g in nvml.all_devices() if g.uuid == self.info.uuid), None)
            yield lambda: None if gpu is None else nvml.read_core(gpu)

    # Keeping the record

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        """Time a stage, note what it died of, hand its memory back."""
        self._note(stage=name)
        begin = time.perf_counter()
        try:
            yield
        except Exception as error:  # any failure is this stage's and ends nothing else
            self._fail(name, error)
        self._release()
        self._note(seconds={**self.found.seconds, name: time.perf_counter() - begin})

    def _attempt(self, name: str, work: Callable[[], T]) -> T | None:
        """The result, or None with the reason recorded."""
        try:
            return work()
        except Exception as error:  # whatever a measurement dies of is why it is missing
            self._fail(name, error)
            return None

    def _fail(self, name: str, error: Exception) -> None:
        import traceback

        from scalewise.measure.doctor_timing import one_line

        traceback.print_exception(error)
        self._miss(name, one_line(error))

    def _miss(self, name: str, reason: str) -> None:
        self._note(missing={**self.found.missing, name: reason})

    def _note(self, **changes: object) -> None:
        self.found = replace(self.found, **changes)  # type: ignore[arg-type]
        save_json(self._path, self.found)

    def _release(self) -> None:
        if self.device.type == "cuda":
            import torch

            torch.cuda.empty_cache()


def _versions() -> dict[str, str]:
    import torch

    versions = {"torch": str(torch.__version__)}
    if torch.version.cuda is not None:
        versions["cuda"] = torch.version.cuda
    if torch.cuda.is_available() and torch.distributed.is_nccl_available():
        versions["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    return versions


def _die_with_parent() -> None:
    """Let the kernel end this process when its parent's main thread ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    # It may have ended before the request was in place.
    if os.getppid() != int(os.environ[ENV_PARENT]):
        os._exit(1)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: tearing down a process group whose peers are gone can hang.
    os._exit(status)
