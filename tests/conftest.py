"""What holds for every test."""

import gc
import signal

import pytest

gc.disable()  # imports alone would have it look through all of torch again and again


def pytest_collection_finish() -> None:
    """What was imported stays: no collection of garbage needs to look through it once more."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True, scope="session")
def signals_reach_children() -> None:
    """A shell's background ignores Ctrl-C and nohup a hangup, and so would every child.

    A handler, unlike a signal that is ignored, does not outlive the start of another program.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
