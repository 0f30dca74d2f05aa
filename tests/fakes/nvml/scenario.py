"""Builds the fake ``libnvidia-ml.so.1`` and writes the scenarios that drive it."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).with_name("fake_nvml.c")

INVALID_ARGUMENT, NO_PERMISSION, DRIVER_NOT_LOADED = 2, 4, 9
TIMEOUT, GPU_IS_LOST, VERSION_MISMATCH = 10, 15, 18
"""The ``nvmlReturn_t`` codes that scenarios use."""

_H200_SERIES = {
    "utilization": 88, "memory_mib": 10240, "power_mw": 600_000, "power_limit_mw": 700_000,
    "temperature": 61, "sm_clock": 1980, "memory_clock": 3201, "reasons": 4, "ecc_corrected": 0,
    "ecc_uncorrected": 0, "remapped_rows": 0,
}  # fmt: skip
_H200_GPM = {
    "sm_activity": 88.5, "sm_occupancy": 42.25, "tensor_activity": 37.5, "dram_activity": 61,
    "engine_activity": 97.5, "pcie_tx_rate": 120, "pcie_rx_rate": 340, "nvlink_tx_rate": 12345,
    "nvlink_rx_rate": 12340,
}  # fmt: skip


def build_library() -> Path:
    """The folder that holds the compiled library; built once for each version of its source."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"scalewise-fake-nvml-{os.getuid()}-{digest}"
    library = folder / "libnvidia-ml.so.1"
    if not library.exists():
        compiler = shutil.which("gcc") or shutil.which("cc")
        if compiler is None:
            raise FileNotFoundError("the fake NVML needs a C compiler: gcc or cc")
        folder.mkdir(exist_ok=True)
        fresh = folder / f"build-{os.getpid()}.so"
        flags = ["-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC"]
        name = "-Wl,-soname,libnvidia-ml.so.1"
        subprocess.run([compiler, *flags, name, "-o", fresh, SOURCE, "-lm"], check=True)
        fresh.replace(library)
    return folder


def gpu_uuid(index: int) -> str:
    return f"GPU-00000000-0000-0000-0000-{index:012d}"


def mig_uuid(index: int, instance: int) -> str:
    return f"MIG-00000000-0000-0000-{index:04d}-{instance:012d}"


@dataclass
class Scenario:
    """What the fake driver shows, statement by statement. Times are seconds from ``origin``."""

    lines: list[str] = field(default_factory=list)
    origin: float = field(default_factory=time.monotonic)
    """CLOCK_MONOTONIC time zero, so that all processes see the same history."""

    def h200(self, count: int, *, gpm: bool = True) -> Scenario:
        """Add ``count`` H200s behind NVSwitches, with all series; GPU i is 1 % busier than i-1."""
        for index in range(count):
            self.device(str(index), gpu_uuid(index), 143_771, "NVIDIA H200")
            for name, value in {**_H200_SERIES, **(_H200_GPM if gpm else {})}.items():
                self.points(index, name, {0: value})
            self.points(index, "utilization", {0: _H200_SERIES["utilization"] + index})
            self.points(index, "memory_mib", {0: _H200_SERIES["memory_mib"] + 1024 * index})
            self.counter(index, "energy_mj", base=5_000_000, rate=600_000)
            self.counter(index, "pcie_tx_bytes", base=0, rate=2**20)
            self.counter(index, "pcie_rx_bytes", base=0, rate=2**21)
            self.add(f"switch_links {index} 18")
        return self

    def add(self, line: str) -> Scenario:
        self.lines.append(line)
        return self

    def device(self, key: str, uuid: str, total_mib: int, name: str) -> Scenario:
        return self.add(f"device {key} {uuid} {total_mib} {name}")

    def mig(self, gpu: int, instance: int, total_mib: int = 16_384) -> Scenario:
        """A MIG instance, by which the GPU is divided."""
        uuid = mig_uuid(gpu, instance)
        return self.device(f"{gpu}.{instance}", uuid, total_mib, "NVIDIA H200 MIG 1g.18gb")

    def points(self, key: int | str, series: str, values: dict[float, float]) -> Scenario:
        """From each time on, this value."""
        words = " ".join(f"{at}:{value}" for at, value in values.items())
        return self.add(f"points {key} {series} {words}")

    def counter(self, key: int | str, series: str, *, base: float, rate: float) -> Scenario:
        return self.add(f"counter {key} {series} {base} {rate}")

    def fault(
        self, key: int | str, series: str, code: int, at: float = 0, until: float = float("inf")
    ) -> Scenario:
        return self.add(f"fault {key} {series} {code} {at} {until}")

    def xid(self, gpu: int, number: int, at: float) -> Scenario:
        """The driver reports an error of a GPU."""
        return self.add(f"xid {gpu} {number} {at}")

    def latency(self, key: int | str, series: str, microseconds: int) -> Scenario:
        return self.add(f"latency {key} {series} {microseconds}")

    def write(self, path: Path) -> Path:
        path.write_text("\n".join([f"origin {self.origin}", *self.lines]) + "\n", encoding="ascii")
        return path


def environment(scenario: Path) -> dict[str, str]:
    """What a subprocess needs to see the scenario: its own environment and two variables."""
    return {**os.environ, **variables(scenario)}


def variables(scenario: Path) -> dict[str, str]:
    """Those two."""
    return {"LD_LIBRARY_PATH": str(build_library()), "FAKE_NVML_SCENARIO": str(scenario)}
