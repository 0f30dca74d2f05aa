"""A sweep whose hosts are reached as a user reaches them: ssh, a key, and a real sshd."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fakes.across_hosts import ON_BOTH, first_steps
from fakes.sshd_hosts import SshdHosts, sshd_hosts, why_no_sshd
from fakes.train_command import LEAN, Train, wait_for
from fakes.two_hosts import NAMES
from scalewise.sweep.host_agent import SILENCE_S

_REFUSAL = why_no_sshd()
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(_REFUSAL is not None, reason=str(_REFUSAL)),
]

TRAINING = (
    *LEAN,
    *ON_BOTH,
    "batch_size=16",
    "model._target_=mine.Faulty",
    "dataset._target_=mine.Data",
)
_AGENT = "scalewise.sweep.host_agent run"
SLOW = (*TRAINING, "+model.step_ms=50", "validation=never")


@pytest.fixture
def hosts(tmp_path: Path, train: Train) -> Iterator[SshdHosts]:
    with sshd_hosts(tmp_path) as made:
        train.script = (str(made.on_head), *train.script)
        yield made


def forget_the_host(hosts: SshdHosts) -> None:
    (hosts.home("head") / ".ssh" / "known_hosts").write_text("")


def change_the_host_key(hosts: SshdHosts) -> None:
    known = hosts.home("head") / ".ssh" / "known_hosts"
    first, second = known.read_text().splitlines()
    address, kind, _ = first.split()
    known.write_text(f"{address} {kind} {second.split()[2]}\n{second}\n")


def lock_out_the_key(hosts: SshdHosts) -> None:
    (hosts.home(NAMES[0]) / ".ssh" / "authorized_keys").write_text("")


def close_the_port(hosts: SshdHosts) -> None:
    with (hosts.home("head") / ".ssh" / "config").open("a") as file:
        file.write("Host *\n  Port 2222\n")


def pull_the_cable(hosts: SshdHosts) -> None:
    hosts.connection(0, "down")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (forget_the_host, "Host key verification failed"),
        (change_the_host_key, "Host key verification failed"),
        (lock_out_the_key, "Permission denied (publickey,password"),
        (close_the_port, "Connection refused"),
        (pull_the_cable, "ssh: connect to host 10.78.0.2 port 22: "),
    ],
)
def test_a_host_that_refuses_is_wrong_input(
    train: Train, own_code: Path, hosts: SshdHosts, fault: Callable[[SshdHosts], None], words: str
) -> None:
    fault(hosts)
    began = time.monotonic()
    run = train(*TRAINING, "strategy=ddp", "strategy.devices=2", cwd=own_code)
    assert run.status == 2, run.err
    (line,) = [line for line in run.err.splitlines() if "hosta" in line]
    assert line.startswith("error: hydra.launcher.hosts: hosta gave no answer (")
    assert words in line
    assert line.endswith("hosta true")
    assert time.monotonic() - began < 40, "nobody was asked for a password"


def test_nothing_is_left_on_the_hosts_of_a_sweep_that_was_killed(
    train: Train, own_code: Path, hosts: SshdHosts
) -> None:
    head = train.start(
        *SLOW, "strategy=ddp", "strategy.devices=2", "max_steps=100000", cwd=own_code
    )
    cell = first_steps(wait_for(lambda: train.sweeps(own_code), "a sweep").pop())
    assert all(hosts.processes(index) for index in range(2))
    head.kill()
    head.communicate()
    wait_for(
        lambda: not any(hosts.processes(index) for index in range(2)), "the end on both hosts", 20
    )
    (attempt,) = cell.attempts()
    assert (attempt.outcome, attempt.message) == ("interrupted", "the sweep ended")


def test_a_cell_whose_connection_breaks_is_tried_again_elsewhere(
    train: Train, own_code: Path, hosts: SshdHosts
) -> None:
    # Longer than ssh takes to notice: a cell that is done by then is done.
    head = train.start(*SLOW, "max_steps=600", cwd=own_code)
    cell = first_steps(wait_for(lambda: train.sweeps(own_code), "a sweep").pop(), ranks=1)
    (first,) = [index for index in range(2) if hosts.processes(index)]
    hosts.connection(first, "down")
    _, err = head.communicate(timeout=170)
    assert head.returncode == 0, err
    assert f"lost     {NAMES[first]}: the connection to {NAMES[first]} broke" in err
    (attempt,) = cell.attempts()
    assert (attempt.outcome, attempt.cause) == ("failed", "host")
    result = cell.load_result()
    assert (result.attempt, result.ranks[0].steps_completed) == (2, 600)
    assert result.started_at - attempt.finished_at > SILENCE_S, "the first host may still write"
    assert not hosts.processes(first)


def test_a_supervisor_that_is_killed_costs_no_host(
    train: Train, own_code: Path, hosts: SshdHosts
) -> None:
    """The other host's ranks then fail of a peer that is gone: that is not what is recorded."""
    head = train.start(*SLOW, "strategy=ddp", "strategy.devices=2", "max_steps=100", cwd=own_code)
    cell = first_steps(wait_for(lambda: train.sweeps(own_code), "a sweep").pop())
    agents = {line: pid for pid, line in hosts.processes(1).items() if _AGENT in line}
    own = min(agents, key=len)  # the others are shells that wait for it
    os.kill(agents[own], signal.SIGKILL)
    _, err = head.communicate(timeout=170)
    assert head.returncode == 0, err
    assert "lost     " not in err
    (attempt,) = cell.attempts()
    assert (attempt.outcome, attempt.cause) == ("failed", "supervisor")
    assert attempt.message.startswith("the supervisor on hostb was ended by SIGKILL")
    assert "all jobs are watched" not in attempt.message, "only the .bashrc said so"
    assert cell.load_result().attempt == 2
