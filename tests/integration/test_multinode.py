"""DDP across two hosts with networks of their own, and a cable that is pulled while they train."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.train_command import LEAN, Train, wait_for
from fakes.two_hosts import ADDRESSES, NAMES, TwoHosts, two_hosts, why_not
from scalewise.analysis.shards import audit_shards
from scalewise.records import CellFolder, SweepFolder, read_heartbeat, read_shard

_REFUSAL = why_not()
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(_REFUSAL is not None, reason=str(_REFUSAL)),
]

HANG_S = 12


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[TwoHosts]:
    with two_hosts(tmp_path) as made:
        yield made


def across(hosts: TwoHosts) -> tuple[str, ...]:
    names = ",".join(f"{n}:{a}" for n, a in zip(NAMES, ADDRESSES, strict=True))
    return (
        "-m",
        "hydra/launcher=ssh",
        f"hydra.launcher.hosts=[{names}]",
        f"hydra.launcher.connect='{hosts.reach} {{host}} {{command}}'",
        "hydra.launcher.devices_per_node=1",
        "hardware=cpu",
        "hardware.cores_per_device=1",
        "strategy=ddp",
        "strategy.devices=2",
    )


def first_step(sweep: Path) -> CellFolder:
    """The cell that runs, once both of its hosts make steps."""

    def running() -> CellFolder | None:
        for _, folder in SweepFolder(sweep).cells():
            beats = [read_heartbeat(folder.heartbeat_path(rank)) for rank in range(2)]
            if all(beat is not None and beat.step > 2 for beat in beats):
                return folder
        return None

    wait_for((sweep / "sweep.json").exists, "the plan", 60)
    found = wait_for(running, "steps on both hosts", 90)
    assert isinstance(found, CellFolder)
    return found


def test_a_cut_cable_is_reported_at_both_ends_and_the_sweep_goes_on(
    train: Train, own_code: Path, hosts: TwoHosts
) -> None:
    known = train.sweeps(own_code)
    head = train.start(
        *(*LEAN, *across(hosts), "batch_size=16", "max_steps=60", "seed=1,2"),
        *("model._target_=mine.Faulty", "dataset._target_=mine.Data", "+model.step_ms=50"),
        f"sweep.collective_timeout_s={HANG_S}",
        cwd=own_code,
    )
    sweep: Path = wait_for(lambda: train.sweeps(own_code) - known, "a sweep").pop()
    cut = first_step(sweep)
    hosts.cable("down")
    attempt_path = cut.path / "attempts" / "1.json"
    wait_for(attempt_path.exists, "its end", 3 * HANG_S)
    hosts.cable("up")
    _, err = head.communicate(timeout=120)

    assert head.returncode == 1, err
    (attempt,) = cut.attempts()
    assert attempt.outcome == "failed"
    assert attempt.cause == "hang", attempt
    assert "(sweep.collective_timeout_s) in a collective for ranks of other" in attempt.message
    assert attempt.finished_at - attempt.started_at < 4 * HANG_S
    other = json.loads((cut.path / "nodes" / "1.json").read_text())["verdict"]
    assert other["cause"] == "hang", "the second host says so itself"
    assert "rank 1 waited" in other["message"]
    ((_, whole),) = [(p, f) for p, f in SweepFolder(sweep).cells() if f.path != cut.path]
    result = whole.load_result()
    assert [(rank.rank, rank.local_rank) for rank in result.ranks] == [(0, 0), (1, 0)]
    assert [rank.steps_completed for rank in result.ranks] == [60, 60]
    shards = [read_shard(whole.shard_path(rank), rank) for rank in range(2)]
    assert audit_shards(shards, 2, 16).verdict == "sharded"
    assert json.loads((whole.path / "rendezvous.json").read_text())["address"] == ADDRESSES[0]
