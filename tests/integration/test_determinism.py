"""``deterministic=true``: the same cell twice gives the same losses to the last bit."""

from __future__ import annotations

from fakes.train_command import LEAN, Train
from scalewise.records import read_metrics


def test_losses_are_bit_identical_twice(train: Train) -> None:
    run = train(
        "-m", *LEAN, "strategy=single,ddp", "model=gpt2_tiny", "dataset=synthetic_tokens",
        "optimizer=adamw", "batch_size=4", "deterministic=true", "repeats=2",
        "log_every_n_steps=1", "max_steps=6",
    )  # fmt: skip
    assert run.status == 0, run.err
    losses: dict[str, list[list[float | None]]] = {}
    for planned, folder in run.cells().values():
        rows = read_metrics(folder.metrics_path(0))
        curve = [row.values["train_loss"] for row in rows if "train_loss" in row.values]
        losses.setdefault(planned.config_id, []).append(curve)
    assert len(losses) == 2
    for first, second in losses.values():
        assert len(set(first)) == len(first) >= 6, "a loss that does not move proves nothing"
        assert first == second
