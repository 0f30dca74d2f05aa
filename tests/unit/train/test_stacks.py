"""A rank answers requests for its stacks after training, too."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, signal
import pytorch_lightning as pl
from pytorch_lightning.demos.boring_classes import BoringModel
from scalewise.host import answer_requests, keep_answering

answer_requests()
trainer = pl.Trainer(
    max_steps=1, accelerator="cpu", logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, limit_val_batches=0,
)
keep_answering(trainer)
trainer.fit(BoringModel())
os.kill(os.getpid(), signal.SIGUSR1)
print("still here")
"""


def test_a_request_after_training_is_answered() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        check=False, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert "still here" in ended.stdout
    assert "most recent call first" in ended.stderr
