"""What holds for every test."""

from __future__ import annotations

import signal

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Try a test that holds a real clock against a bound thrice.

    The neighbours of a shared host make a time longer now and then. A defect does so each time,
    and fails all three; a test that does not measure is never tried again.
    """
    for item in items:
        if item.get_closest_marker("timing"):
            item.add_marker(pytest.mark.flaky(reruns=2, only_rerun=["AssertionError"]))


@pytest.fixture(autouse=True, scope="session")
def signals_reach_children() -> None:
    """A shell's background ignores Ctrl-C and nohup a hangup, and so would every child.

    A handler, unlike a signal that is ignored, does not outlive the start of another program.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
