"""What holds for every test."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Try a test that holds a real clock against a bound thrice.

    The neighbours of a shared host make a time longer now and then. A defect does so each time,
    and fails all three; a test that does not measure is never tried again.
    """
    for item in items:
        if item.get_closest_marker("timing"):
            item.add_marker(pytest.mark.flaky(reruns=2, only_rerun=["AssertionError"]))
