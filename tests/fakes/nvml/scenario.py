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

NOT_SUPPORTED, NO_PERMISSION, DRIVER_NOT_LOADED = 3, 4, 9
TIMEOUT, GPU_IS_LOST, VERSION_MISMATCH = 10, 15, 18
"""The ``nvmlReturn_t`` codes that scenarios use."""

_H200_SERIES = {
    "utilization": 88, "memory_mib": 10240, "power_mw": 600_000, "power_limit_mw": 700_000,
    "temperature": 61, "sm_clock": 1980, "memory_clock": 3201, "reasons": 4, "ecc_corrected": 0,
    "ecc_uncorrected": 0, "remapped_rows": 0,
}  # fmt: skip
SM_ACTIVITY = "gpm.2"
_H200_GPM = {
    "gpm.1": 97.5, SM_ACTIVITY: 88.5, "gpm.3": 42.25, "gpm.5": 37.5, "gpm.10": 61, "gpm.20": 120,
    "gpm.21": 340, "gpm.60": 12340, "gpm.61": 12345,
}  # fmt: skip
"""By the numbers of ``nvmlGpmMetricId_t``."""


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


@dataclass
class Scenario:
    """What the fake driver shows, statement by statement. Times are seconds from ``origin``."""

    lines: list[str] = field(default_factory=list)
    origin: float = field(default_factory=time.monotonic)
    """CLOCK_MONOTONIC time zero, so that all processes see the same history."""

    def h200(self, count: int, *, gpm: bool = True) -> Scenario:
        """Add ``count`` H200s behind NVSwitches, with all series; GPU i is 1 % busier than i-1."""
        for index in range(count):
            self.gpu(index, 143_771, "NVIDIA H200")
            for name, value in {**_H200_SERIES, **(_H200_GPM if gpm else {})}.items():
                self.value(index, name, value)
            self.value(index, "utilization", _H200_SERIES["utilization"] + index)
            self.value(index, "memory_mib", _H200_SERIES["memory_mib"] + 1024 * index)
            self.value(index, "energy_mj", 5_000_000, rate=600_000)
            self.value(index, "pcie_tx_bytes", 0, rate=2**20)
            self.value(index, "pcie_rx_bytes", 0, rate=2**21)
            self.value(index, "switch_links", 18)
        return self

    def add(self, line: str) -> Scenario:
        self.lines.append(line)
        return self

    def gpu(self, index: int, total_mib: int, name: str) -> Scenario:
        """The next GPU."""
        return self.add(f"gpu {index} {gpu_uuid(index)} {name}").value(
            index, "total_mib", total_mib
        )

    def mig(self, gpu: int) -> Scenario:
        """The GPU is divided into MIG instances."""
        return self.value(gpu, "mig", 1)

    def value(self, gpu: int, series: str, base: float, rate: float = 0) -> Scenario:
        """A series that begins at ``base`` and grows by ``rate`` a second."""
        return self.add(f"{series} {gpu} {rate} {base}")

    def fault(
        self, key: int | str, series: str, code: int, at: float = 0, until: float = float("inf")
    ) -> Scenario:
        return self.add(f"fault {key} {series} {code} {at} {until}")

    def xid(self, gpu: int, number: int, at: float) -> Scenario:
        """The driver reports an error of a GPU."""
        return self.add(f"xid {gpu} {number} {at}")

    def write(self, path: Path, *, from_opening: bool = False) -> Path:
        """``from_opening``: time zero is when a process opens NVML, however busy the host is."""
        lines = self.lines if from_opening else [f"origin {self.origin}", *self.lines]
        path.write_text("\n".join(lines) + "\n", encoding="ascii")
        return path


def environment(scenario: Path) -> dict[str, str]:
    """What a subprocess needs to see the scenario: its own environment and two variables."""
    return {**os.environ, **variables(scenario)}


def variables(scenario: Path) -> dict[str, str]:
    """Those two."""
    return {"LD_LIBRARY_PATH": str(build_library()), "FAKE_NVML_SCENARIO": str(scenario)}
