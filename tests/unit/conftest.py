"""What holds for every unit test."""

import sys

import pytest


@pytest.fixture(autouse=True, scope="session")
def one_thread_each() -> None:
    """The workers share the cores: torch's threads beside them would wait for one another."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
