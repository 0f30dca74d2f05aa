"""Where a cell ran, and what its result depends on beside its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

WORKING_DIRECTORY = "working directory"
"""Whose repository a ``code`` is of where scalewise itself runs from none."""
SOURCE_SHA256 = "source_sha256"
"""In a ``code``: hash of scalewise's own sources, where no commit of theirs is known."""
CLASS_FILES = "class_files"
"""In a ``code``: file of each module of the user's own classes to its SHA-256."""
PROTOCOL = 2
"""How steps are timed now. 1: a thread of the recorder opened a context on GPU 0 from every other
rank, and stalled all ranks of a run on several GPUs."""


@dataclass(frozen=True)
class DeviceInfo:
    """The device one rank ran on."""

    kind: Literal["cuda", "cpu"]
    """What computed."""
    name: str
    """``NVIDIA H200``, or the processor's model name."""
    uuid: str | None = None
    """The GPU's UUID; None on a CPU host."""
    index: int | None = None
    """NVML's index of the GPU on its host; None on a CPU host."""
    cores: tuple[int, ...] = ()
    """The CPU cores the rank was bound to."""
    memory_total_mib: float | None = None
    """The GPU's memory; None on a CPU host."""


@dataclass(frozen=True)
class Provenance:
    """What a result depends on beside its configuration."""

    command: tuple[str, ...]
    host: str
    """What tells the host apart without naming it: :mod:`scalewise.host_identity`. Twelve digits
    without a kind before them are the hash of the host's name, from before there were kinds; beside
    one with a kind it may be the same host."""
    platform: str
    python: str
    packages: Mapping[str, str]
    """Distribution name to version."""
    code: Mapping[str, Any]
    """``commit``, ``dirty`` and ``diff_sha256`` of scalewise's working tree. Where it has none,
    :data:`SOURCE_SHA256`, and those three of the tree that the run started in, with
    :data:`WORKING_DIRECTORY` as ``tree``. Where classes of the user's own were named,
    :data:`CLASS_FILES`. Older records have no hash and no files."""
    devices: tuple[DeviceInfo, ...]
    """One for each local rank."""
    driver: str | None
    cuda: str | None
    nccl: str | None
    environment: Mapping[str, str]
    """Those of :data:`scalewise.recorded_environment.RECORDED`, as the ranks saw them."""
    usable_cores: int
    """Of the host, for all its cells; what a rank was bound to is in ``devices``."""
    memory_limit_mib: float | None
    """The cgroup's memory limit; None where there is none."""
    shared_memory_mib: float | None = None
    """Size of /dev/shm; None where there is none."""
    emulated: tuple[str, ...] = ()
    """What was made to look different from what it is, e.g. ``NCCL_P2P_DISABLE=1``."""
    topology: Mapping[str, str] = field(default_factory=dict)
    """Link kind for each pair of GPUs, ``"0-1": "NV18"``."""
    peak_tflops: Mapping[str, Annotated[float, Field(gt=0, le=10**9)]] = field(default_factory=dict)
    """Data sheet rate of one device for each precision; empty where no profile describes it."""
    peak_source: str | None = None
    """The document and date those rates are from."""
    data: Mapping[str, str] = field(default_factory=dict)
    """Argument of the data set to the size and sum of the file it named; empty where none did."""
    own_code: Mapping[str, str] = field(default_factory=dict)
    """Sums of import graphs in older records, which compare with nothing; now ``code`` holds
    :data:`CLASS_FILES`."""
    started: Literal["fresh", "forked"] = "fresh"
    """``forked``: the ranks are forks of a process that had imported everything already."""
    protocol: int = 1
    """As :data:`PROTOCOL` was for the process that recorded."""
