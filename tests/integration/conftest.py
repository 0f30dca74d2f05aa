"""``train.py`` as a user runs it, for every test of it."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.train_command import ROOT, Train, copy_own_code, end, make_train


@pytest.fixture(autouse=True, scope="session")
def own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Each worker leases devices and keeps trackers' records for itself."""
    with pytest.MonkeyPatch.context() as environment:
        for name in ("SCALEWISE_RUNTIME_DIR", "TRACKIO_DIR"):
            environment.setenv(name, str(tmp_path_factory.mktemp(name.lower())))
        yield


@pytest.fixture
def train(tmp_path: Path) -> Iterator[Train]:
    """A runner; whatever a test leaves running fails it."""
    runner = make_train(tmp_path)
    yield runner
    assert end(runner) == {}


@pytest.fixture(scope="module")
def shared_train(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Train]:
    """A runner whose sweeps several tests look at."""
    runner = make_train(tmp_path_factory.mktemp("shared"))
    yield runner
    assert end(runner) == {}


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder with his code, whose sweeps several tests look at."""
    return copy_own_code(tmp_path_factory.mktemp("user") / "elsewhere")


@pytest.fixture
def own_code(tmp_path: Path) -> Path:
    """A user's folder, elsewhere, with his code as the module ``mine``."""
    return copy_own_code(tmp_path / "elsewhere")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MiB. Only root may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(folder)]
    if os.getuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("a small file system cannot be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def trackers_environment(tmp_path: Path) -> dict[str, str]:
    """Trackers that see no account of whoever runs the tests, and write below ``tmp_path``."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("WANDB_", "TRACKIO_"))}
    home = tmp_path / "home"
    home.mkdir()
    return {
        **kept, "HOME": str(home), "NETRC": str(home / "netrc"),
        "TRACKIO_DIR": str(tmp_path / "trackio"), "PYTHONPATH": str(ROOT / "src"),
    }  # fmt: skip
