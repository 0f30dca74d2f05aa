"""A rank answers requests for its stacks after training, too."""

from __future__ import annotations

import faulthandler
import os
import signal
from pathlib import Path

import pytest
import pytorch_lightning as pl
from pytorch_lightning.demos.boring_classes import BoringModel

from scalewise.host import keep_answering


@pytest.mark.filterwarnings("ignore")
def test_a_request_after_training_is_answered(tmp_path: Path) -> None:
    trainer = pl.Trainer(
        max_steps=1, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, limit_val_batches=0,
    )  # fmt: skip
    with (tmp_path / "stacks").open("w+") as stacks:
        faulthandler.register(signal.SIGUSR1, stacks)  # as answer_requests does, for stderr
        try:
            keep_answering(trainer)
            trainer.fit(BoringModel())
            os.kill(os.getpid(), signal.SIGUSR1)
        finally:
            faulthandler.unregister(signal.SIGUSR1)
        stacks.seek(0)
        assert "most recent call first" in stacks.read()
