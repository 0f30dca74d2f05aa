"""A GPU that never ends a captured step: NCCL's watchdog does not see it, the heartbeat does."""

import pytest

from fakes.gpus import in_use, needs, wait_until_left
from fakes.train_command import LEAN, Train

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

HANG_S = 20
START_S = 60


@needs(2)
def test_a_replay_that_never_ends_is_found_by_the_heartbeat(train: Train) -> None:
    before = in_use()
    run = train(
        *LEAN, "strategy=ddp", "execution=cudagraph", "model._target_=mine.StuckWhenReplayed",
        "dataset._target_=mine.Data", "+dataset.train=4096", "batch_size=16", "validation=never",
        "max_steps=2000", f"sweep.hang_timeout_s={HANG_S}", "sweep.grace_s=1",
    )  # fmt: skip
    assert run.status == 1, run.err
    folder = run.only_cell()
    (attempt,) = folder.attempts()
    assert attempt.cause == "hang", attempt
    assert "no rank made a step for 2" in attempt.message
    assert attempt.finished_at - attempt.started_at < START_S + HANG_S
    for rank in (0, 1):
        stacks = folder.log_path(rank, "err").read_text()
        assert "most recent call first" in stacks, f"where rank {rank} waits for its GPU"
    # A kernel that would run for an hour goes with its process.
    wait_until_left(before)
