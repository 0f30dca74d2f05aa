"""Pytest fixture: NVML in this very process is the fake one."""

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest

from fakes.nvml.scenario import Scenario, build_library

FakeNvml = Callable[[Scenario], Path]


@pytest.fixture
def fake_nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """A function that puts a scenario in force for the next ``open_nvml``.

    The library is loaded by path first; its soname then answers when ``pynvml`` asks for
    ``libnvidia-ml.so.1``. It stays loaded, so a test of a host without a driver runs in a
    subprocess.
    """
    ctypes.CDLL(str(build_library() / "libnvidia-ml.so.1"))

    def use(scenario: Scenario) -> Path:
        path = scenario.write(tmp_path / "scenario.txt")
        monkeypatch.setenv("FAKE_NVML_SCENARIO", str(path))
        return path

    return use
