"""The probe of the host: what it counts, whose turn it is, and what it leaves as it was."""

from __future__ import annotations

import random
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]

from scalewise.train.recording import host_probe
from scalewise.train.recording.host_probe import NoTurnsError, probe_host


class Clock:
    """Seconds that pass only where somebody says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.loops = 0

    def perf_counter(self) -> float:
        return self.now

    def passes(self, seconds: float) -> None:
        self.now += seconds

    def loop(self) -> None:
        """The first are slow; of the others every fourth is taken away from its core."""
        self.loops += 1
        self.now += 1e-3 if self.loops <= 20 else 600e-6 if self.loops % 4 == 0 else 200e-6


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(host_probe, "time", clock)
    monkeypatch.setattr(host_probe, "_loop", clock.loop)
    monkeypatch.setattr(host_probe, "empty_kernel", lambda: clock.passes(5e-6))
    # Waiting for the device is no part of a launch.
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: clock.passes(2e-3))
    return clock


def test_what_is_counted(clock: Clock) -> None:
    on_cpu = probe_host("run", 0, 1, on_gpu=False)
    assert clock.now == pytest.approx(host_probe.PROBE_S, abs=1e-3)
    assert on_cpu.loop_us == pytest.approx(200)
    assert 250 < on_cpu.loop_mean_us < 400
    assert on_cpu.launches_per_s is None
    on_gpu = probe_host("run", 0, 1, on_gpu=True)
    assert on_gpu.launches_per_s == pytest.approx(2e5)


def test_ranks_take_turns_when_all_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last to come is the first to probe; nobody goes on before the last has probed."""
    store, happened = HashStore(), list[str]()
    monkeypatch.setattr(host_probe.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(host_probe, "default_store", lambda: store)

    def probe(seconds: float, *, on_gpu: bool) -> SimpleNamespace:
        assert seconds == pytest.approx(host_probe.PROBE_S / 3), "of all ranks together as of one"
        name = threading.current_thread().name
        happened.append(f"{name} begins")
        time.sleep(0.02)
        happened.append(f"{name} ends")
        return SimpleNamespace()

    monkeypatch.setattr(host_probe, "_probe", probe)

    def rank(number: int) -> None:
        time.sleep((0.1, 0.0, 0.2)[number])
        happened.append(f"{number} comes")
        probe_host("run", number, 3, on_gpu=False)
        happened.append(f"{number} goes")

    ranks = [threading.Thread(target=rank, args=(r,), name=str(r)) for r in range(3)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join(timeout=20)
    assert happened[:3] == ["1 comes", "0 comes", "2 comes"]
    turns = [f"{r} {what}" for r in range(3) for what in ("begins", "ends")]
    assert happened[3:9] == turns
    assert set(happened[9:]) == {"0 goes", "1 goes", "2 goes"}


def test_ranks_without_a_process_group_are_not_probed() -> None:
    with pytest.raises(NoTurnsError, match="no process group"):
        probe_host("run", 0, 2, on_gpu=False)


def test_it_leaves_random_numbers_as_they_were() -> None:
    torch.manual_seed(1)
    before = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist())
    found = probe_host("run", 0, 1, on_gpu=False)
    assert found.loops > 10
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (random.getstate(), np.random.get_state()[1].tolist())
    assert not torch.cuda.is_initialized()
