"""A cell that was killed goes on from its last checkpoint as if nothing had happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from fakes.train_command import Train
from scalewise.records import CellFolder, read_metrics, read_steps

STEPS, KILLED_AT, EVERY = 45, 37, 10
"""Of 20 batches an epoch: the checkpoint due at step 20, an epoch's last, is made at 21."""
RESUMED_AT = 31


def curve(cell: CellFolder, rank: int) -> list[tuple[int, int, int, float | None]]:
    rows = read_metrics(cell.metrics_path(rank))
    return [(r.step, r.epoch, r.samples, r.values.get("train_loss")) for r in rows]


def pruning_state(cell: CellFolder) -> dict[str, Any]:
    """Of the last checkpoint."""
    (path,) = cell.path.glob("checkpoints/*/trainer.ckpt")
    state: dict[str, Any] = torch.load(path, weights_only=False)["callbacks"]["Pruning"]
    return state


def test_the_loss_curve_is_that_of_an_uninterrupted_run(train: Train, own_code: Path) -> None:
    (own_code / "armed").touch()
    run = train(
        "tracking=none",
        "monitor.devices=false",
        "validation=never",
        "strategy=ddp",
        "model._target_=mine.Dropping",
        f"+model.kill_at=0,{KILLED_AT}",
        "dataset._target_=mine.Data",
        "batch_size=16",
        f"max_steps={STEPS}",
        "warmup_steps=2",
        "log_every_n_steps=1",
        f"checkpoint.every_n_steps={EVERY}",
        "pruning=movement",
        "pruning.begin_step=4",
        "pruning.end_step=40",
        "pruning.every_n_steps=3",
        "checkpoint.keep=true",
        "-m",
        cwd=own_code,
    )
    assert run.status == 0, run.err
    assert "rank 1 was ended by SIGKILL" in run.err
    assert "retry 1 of 1" in run.err
    cells = {cell.load_config()["model"].get("kill_at"): cell for _, cell in run.cells().values()}
    whole, killed = cells[0], cells[KILLED_AT]

    (attempt,) = killed.attempts()
    result = killed.load_result()
    assert (attempt.cause, attempt.rank, result.attempt) == ("signal", 1, 2)
    assert result.started_at >= attempt.finished_at, "the interrupted part is no part of its time"
    for rank in (0, 1):
        assert curve(killed, rank) == curve(whole, rank)
        summary = killed.load_rank(rank)
        assert summary.resumed_at_step == RESUMED_AT
        assert summary.steps_completed == whole.load_rank(rank).steps_completed == STEPS
        assert summary.samples_fed == whole.load_rank(rank).samples_fed
        steps = read_steps(killed.steps_path(rank), rank)
        assert steps.rows["step"].tolist() == list(range(RESUMED_AT, STEPS))
        assert len(steps.timed()) == STEPS - RESUMED_AT - 2, "it warms up anew"
        assert whole.load_rank(rank).resumed_at_step is None
    for cell in (whole, killed):
        kept = [path.name for path in (cell.path / "checkpoints").iterdir()]
        assert len(kept) == 1, kept
    states = [pruning_state(cell) for cell in (whole, killed)]
    assert states[0]["steps"] == states[1]["steps"] > RESUMED_AT
    for name in ("masks", "movement"):
        assert states[0][name]
        assert all(map(torch.equal, states[0][name], states[1][name])), name
