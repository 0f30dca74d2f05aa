"""A cell that was killed goes on from its last checkpoint as if nothing had happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from fakes.restart import RESTARTING, RESUMED_AT, check_resumed
from fakes.train_command import Train
from scalewise.records import CellFolder


def pruning_state(cell: CellFolder) -> dict[str, Any]:
    """Of the last checkpoint."""
    (path,) = cell.path.glob("checkpoints/*/trainer.ckpt")
    state: dict[str, Any] = torch.load(path, weights_only=False)["callbacks"]["Pruning"]
    return state


def test_the_loss_curve_is_that_of_an_uninterrupted_run(train: Train, own_code: Path) -> None:
    run = train(
        *RESTARTING,
        "+model.fault=none,sigkill",
        "monitor.devices=false",
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
    cells = {cell.load_config()["model"]["fault"]: cell for _, cell in run.cells().values()}
    whole, killed = cells["none"], cells["sigkill"]
    check_resumed(whole, killed, rel=0)
    for cell in (whole, killed):
        kept = [path.name for path in (cell.path / "checkpoints").iterdir()]
        assert len(kept) == 1, kept
    states = [pruning_state(cell) for cell in (whole, killed)]
    assert states[0]["steps"] == states[1]["steps"] > RESUMED_AT
    for name in ("masks", "movement"):
        assert states[0][name]
        assert all(map(torch.equal, states[0][name], states[1][name])), name
