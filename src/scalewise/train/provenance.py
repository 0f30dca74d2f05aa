"""Everything that a result depends on beside its configuration."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from scalewise.config import conf_dir, data_sheet, load_profiles
from scalewise.host import (
    CLASS_FILES,
    ENV_NOT_FORKED,
    ENV_STARTED,
    host_id,
    imported_modules,
    memory_limit_mib,
    module_files,
    recorded_in,
    running_code,
    shared_memory_mib,
    usable_cores,
)
from scalewise.records import PROTOCOL, CellFolder, DeviceInfo, Provenance, build, load_or_none

_PACKAGES = (
    "scalewise", "torch", "pytorch-lightning", "torchmetrics", "hydra-core", "omegaconf", "numpy",
    "nvidia-ml-py", "trackio", "wandb",
)  # fmt: skip


def collect(
    devices: tuple[DeviceInfo, ...],
    driver: str | None,
    topology: Mapping[str, str],
    code: Mapping[str, Any],
) -> Provenance:
    """Provenance of what this process trains with that ``code``, of files that nobody names."""
    environment = recorded_in(os.environ)
    gpus = [device.name for device in devices if device.kind == "cuda"]
    peak_tflops, peak_source = data_sheet(gpus, load_profiles(conf_dir() / "hardware"))
    return Provenance(
        command=tuple(sys.argv),
        host=host_id(),
        platform=platform.platform(),
        python=platform.python_version(),
        packages=package_versions(),
        code=code,
        devices=devices,
        driver=driver,
        cuda=torch.version.cuda,
        nccl=nccl_version(),
        environment=environment,
        usable_cores=len(usable_cores()),
        memory_limit_mib=memory_limit_mib(),
        shared_memory_mib=shared_memory_mib()[0],
        emulated=emulations(environment, topology),
        topology=dict(topology),
        peak_tflops=peak_tflops,
        peak_source=peak_source,
        data={},
        started="forked" if os.environ.get(ENV_STARTED) == "forked" else "fresh",
        not_forked=os.environ.get(ENV_NOT_FORKED),
        protocol=PROTOCOL,
    )


def collect_started(
    environment: Mapping[str, str],
    host_cores: int,
    data: Mapping[str, str] | None = None,
    classes: Iterable[str] = (),
    cwd: Path | None = None,
) -> Provenance:
    """As :func:`collect`, of a rank that a supervisor started with ``environment``.

    ``host_cores`` are the usable cores of the host, where this process is bound to some of them;
    ``data`` are the files it learns from: :func:`scalewise.host.data_identity`; ``classes`` are
    the user's own: :func:`scalewise.config.own_classes`; ``cwd`` is where the run was started,
    where this process may have gone elsewhere.
    """
    found = collect(
        build(tuple[DeviceInfo, ...], json.loads(environment["SCALEWISE_DEVICES"])),
        environment.get("SCALEWISE_DRIVER"),
        json.loads(environment.get("SCALEWISE_TOPOLOGY", "{}")),
        running_code(cwd or Path.cwd(), classes),
    )
    command = tuple(json.loads(environment.get("SCALEWISE_COMMAND", "[]")))
    return replace(found, command=command, usable_cores=host_cores, data=data or {})


def note_imported(folder: CellFolder) -> None:
    """Add to what is on record the modules of the user's own that were imported since.

    A file that is on record may have been edited after it was imported: it stays as it was.
    """
    known, files = load_or_none(folder.load_provenance), module_files(imported_modules())
    if known is not None and files:
        files |= known.code.get(CLASS_FILES, {})  # of installed classes too
        noted = replace(known, code={**known.code, CLASS_FILES: files})
        folder.save_provenance(noted, amended=True)


def package_versions() -> dict[str, str]:
    versions = {}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def emulations(environment: Mapping[str, str], topology: Mapping[str, str]) -> tuple[str, ...]:
    """Hardware that was made to look different from what it is.

    Peer-to-peer switched off where the GPUs have NVLink is an emulation of PCIe.
    """
    nvlink = any(link.startswith("NV") for link in topology.values())
    if nvlink and environment.get("NCCL_P2P_DISABLE") == "1":
        return ("NCCL_P2P_DISABLE=1 on GPUs with NVLink",)
    return ()


def nccl_version() -> str | None:
    """None where no GPU or no NCCL is there."""
    if not torch.cuda.is_available() or not torch.distributed.is_nccl_available():
        return None
    return ".".join(str(part) for part in torch.cuda.nccl.version())
