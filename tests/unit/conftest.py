"""What holds for every unit test."""

import os
import sys
from collections.abc import Iterator

import pytest


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
