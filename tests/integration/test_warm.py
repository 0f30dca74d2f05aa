"""Sweeps whose ranks are forked from a process that has imported everything."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from scalewise.analysis import load_sweep
from scalewise.analysis.comparability import identity
from scalewise.host import descendants
from scalewise.sweep import local_engine, make_display
from scalewise.sweep.compose import compose_cell
from scalewise.sweep.plan import plan, request

TYPED = [
    "strategy=ddp", "strategy.devices=2", "hardware=cpu", "tracking=none", "max_steps=4",
    "warmup_steps=1", "sweep.retries=0",
]  # fmt: skip


def test_forked_cells_train_fail_and_say_what_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCALEWISE_RUNTIME_DIR", str(tmp_path / "runtime"))
    requests = []
    for more in ([], ["dataset.features=40"], ["seed=3"]):
        requests.append(request([*TYPED, *more], compose_cell([*TYPED, *more])))
    said = io.StringIO()
    engine = local_engine(tmp_path / "sweep", "exclusive", make_display(said), warm=True)
    report = engine.run(plan(requests, 0))
    outcomes = {c.request.overrides[-1]: report.outcomes[c.planned.cell_id] for c in report.cells}
    assert [outcomes[last].state for last in (TYPED[-1], "seed=3")] == ["done", "done"]
    failed = outcomes["dataset.features=40"]
    assert (failed.state, failed.cause) == ("failed", "config")
    assert "40" in failed.message
    assert "start freshly" not in said.getvalue()
    done = [c for c in load_sweep(tmp_path / "sweep").cells if c.result is not None]
    for cell in done:
        assert cell.provenance is not None and cell.result is not None
        assert cell.provenance.started == "forked"
        assert identity([cell])["started"] == "forked"
        # Bound and threaded by what they were leased, not by what the server read at its start.
        assert all(rank.device.cores for rank in cell.result.ranks)
        assert len({rank.pid for rank in cell.result.ranks}) == 2
    assert not descendants(os.getpid())
