"""What an exception that ends a rank is called."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.strategies import DDPStrategy
from torch import nn

from scalewise.config import cause_of, ending_of
from scalewise.records import CellFolder
from scalewise.sweep import worker
from scalewise.train import experiment


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
    assert ending_of(cause_of(left), 0).message == "KeyboardInterrupt"


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
    assert any("raise error" in line for line in recorded.last_lines)
    assert recorded.raised_at is not None and __file__ in recorded.raised_at


def test_unused_parameters_are_named_with_our_key() -> None:
    """Lightning's advice is of settings that a cell does not have."""
    said = RuntimeError("Expected to have finished reduction in the prior iteration before ...")
    DDPStrategy().on_exception(said)
    assert experiment._UNUSED in str(said)
    module = pl.LightningModule()
    module.used, module.head = nn.Linear(2, 2), nn.Linear(2, 2)
    module.used(torch.ones(2)).sum().backward()
    line = experiment._unused_parameters(module)
    assert line.startswith("strategy.find_unused_parameters: found false, ")
    assert "(head.weight, head.bias); allowed: true" in line
    assert "(" not in experiment._unused_parameters(nn.Linear(2, 2)).partition(";")[0]
