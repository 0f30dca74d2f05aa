"""A cell that was killed goes on from its last checkpoint as if nothing had happened."""

from pathlib import Path

from fakes.restart import RESTARTING, check_resumed
from fakes.train_command import Train


def test_the_loss_curve_is_that_of_an_uninterrupted_run(train: Train, own_code: Path) -> None:
    run = train(
        *RESTARTING, "+model.fault=none,sigkill", "monitor.devices=false", "checkpoint.keep=true",
        "-m", cwd=own_code,
    )  # fmt: skip
    assert run.status == 0, run.err
    assert "rank 1 was ended by SIGKILL" in run.err
    assert "retry 1 of 1" in run.err
    cells = {cell.load_config()["model"]["fault"]: cell for _, cell in run.cells().values()}
    whole, killed = cells["none"], cells["sigkill"]
    check_resumed(whole, killed, rel=0)
    for cell in (whole, killed):
        kept = [path.name for path in (cell.path / "checkpoints").iterdir()]
        assert len(kept) == 1, kept
