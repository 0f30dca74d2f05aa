"""Four devices rehearsed on a host that is told it has one."""

import pytest

from fakes.train_command import Train
from scalewise.analysis import analyse, load_sweep
from scalewise.host import usable_cores

pytestmark = pytest.mark.slow


def test_devices_that_are_not_there_are_rehearsed_and_said_to_be(train: Train) -> None:
    done = train(
        "-m", "devices=1,4", "rehearse=custom", "rehearse.latency_us=50", "rehearse.bus_gb_s=5",
        "hardware=cpu", f"hardware.cores_per_device={len(usable_cores())}", "max_steps=60",
        "repeats=1", "tracking=none",
    )  # fmt: skip
    assert done.status == 0, done.err
    assert "rehearse: one rank of N on this host, the others emulated over custom" in done.err
    assert "medium ddp x4, rehearsed over custom: " in done.out
    assert "cannot tell" in done.out
    found = analyse(load_sweep(done.sweep.path))
    assert [c.label for c in found.measured] == ["medium single x1"]
    (one,) = found.rehearsals
    (rank,) = one.config.rank_summaries
    assert rank.rehearsed is not None
    assert (rank.rehearsed.ranks, rank.rehearsed.source) == (4, "50 us and 5 GB/s, as typed")
    assert rank.largest_step_samples == 32
