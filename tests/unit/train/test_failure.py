"""What an exception that ends a rank is called."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scalewise.records import CellFolder
from scalewise.sweep import worker
from scalewise.train import cause_of, failure_line


def ended_by_trainer(error: BaseException) -> BaseException:
    """What leaves ``Trainer.fit`` where a training step raised ``error``."""
    try:
        try:
            raise error
        except KeyboardInterrupt:
            sys.exit(1)
    except BaseException as left:
        return left


def test_an_interrupt_in_a_training_step_is_named() -> None:
    left = ended_by_trainer(KeyboardInterrupt())
    assert isinstance(left, SystemExit)
    assert failure_line(cause_of(left)) == "KeyboardInterrupt"


def test_any_other_end_is_what_it_is() -> None:
    for error in (SystemExit(3), ValueError("no")):
        assert cause_of(ended_by_trainer(error)) is error


def test_a_rank_records_the_interrupt_and_where_it_was_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker.os, "write", lambda descriptor, text: len(text))
    status = worker._report(CellFolder(tmp_path), 0, ended_by_trainer(KeyboardInterrupt()))
    recorded = CellFolder(tmp_path).load_rank_error(0)
    assert status == 1
    assert recorded is not None
    assert recorded.message == "KeyboardInterrupt"
    assert "raise error" in recorded.traceback
