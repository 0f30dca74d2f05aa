"""What holds for every unit test."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.nvml.fixture import fake_nvml as fake_nvml


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Leases of a test are its own."""
    monkeypatch.setenv("SCALEWISE_RUNTIME_DIR", str(tmp_path / "runtime"))
    return tmp_path / "runtime"


@pytest.fixture(autouse=True, scope="session")
def one_thread_each() -> None:
    """The workers share the cores: torch's threads beside them would wait for one another."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def no_power_cut() -> Iterator[None]:
    """Records of a test need not outlive one: the disk is not waited for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield
