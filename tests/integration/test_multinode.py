"""DDP across two hosts with networks of their own, and a cable that is pulled while they train."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.across_hosts import ON_BOTH, first_steps
from fakes.sshd_hosts import sshd_hosts, why_no_sshd
from fakes.train_command import LEAN, Train, wait_for
from fakes.two_hosts import ADDRESSES, TwoHosts, two_hosts, why_not
from scalewise.analysis.shards import audit_shards
from scalewise.records import SweepFolder, read_shard

pytestmark = pytest.mark.cluster

HANG_S = 12


@pytest.fixture(params=["nsenter", "sshd"])
def hosts(request: pytest.FixtureRequest, tmp_path: Path, train: Train) -> Iterator[TwoHosts]:
    """Reached through a stand-in for ssh, or through ssh itself from a third host."""
    real = request.param == "sshd"
    refusal = why_no_sshd() if real else why_not()
    if refusal is not None:
        pytest.skip(refusal)
    if real:
        with sshd_hosts(tmp_path) as made:
            train.script = (str(made.on_head), *train.script)
            yield made.hosts
    else:
        with two_hosts(tmp_path) as hosts:
            connect = f"hydra.launcher.connect='{hosts.reach} {{host}} {{command}}'"
            train.always = (connect,)
            yield hosts


def test_a_cut_cable_is_reported_at_both_ends_and_the_sweep_goes_on(
    train: Train, own_code: Path, hosts: TwoHosts
) -> None:
    known = train.sweeps(own_code)
    head = train.start(
        *(*LEAN, *ON_BOTH, "strategy=ddp", "strategy.devices=2"),
        *("batch_size=16", "max_steps=60", "seed=1,2"),
        *("model._target_=mine.Faulty", "dataset._target_=mine.Data", "+model.step_ms=50"),
        f"sweep.collective_timeout_s={HANG_S}",
        cwd=own_code,
    )
    sweep: Path = wait_for(lambda: train.sweeps(own_code) - known, "a sweep").pop()
    cut = first_steps(sweep)
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
