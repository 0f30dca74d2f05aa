"""Sweeps whose ranks are forked from a process that has imported everything."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from fakes.requests import asked
from scalewise.analysis import load_sweep
from scalewise.analysis.comparability import identity
from scalewise.host import descendants
from scalewise.sweep import SweepReport, local_engine, make_display
from scalewise.sweep.plan import plan

TYPED = [
    "strategy=ddp", "strategy.devices=2", "hardware=cpu", "tracking=none", "max_steps=4",
    "warmup_steps=1", "sweep.retries=0",
]  # fmt: skip


def run(folder: Path, *cells: list[str], warm: bool) -> tuple[SweepReport, str]:
    """A sweep of these cells, and what it said."""
    typed = [[*TYPED, *cell] for cell in cells]
    said = io.StringIO()
    engine = local_engine(folder, "exclusive", make_display(said), warm=warm)
    return engine.run(plan([asked(*t) for t in typed], 0)), said.getvalue()


@pytest.fixture(autouse=True)
def own_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALEWISE_RUNTIME_DIR", str(tmp_path / "runtime"))


def test_forked_cells_train_fail_and_say_what_they_are(tmp_path: Path) -> None:
    report, said = run(tmp_path / "sweep", [], ["dataset.features=40"], ["seed=3"], warm=True)
    endings = {c.request.overrides[-1]: report.endings[c.planned.cell_id] for c in report.cells}
    done = [endings[last].outcome for last in (TYPED[-1], "seed=3")]
    assert done == ["done", "done"]
    failed = endings["dataset.features=40"]
    assert (failed.outcome, failed.cause) == ("failed", "config")
    assert "40" in failed.message
    assert "start without it" not in said
    for cell in load_sweep(tmp_path / "sweep").cells:
        if cell.result is None:
            continue
        assert cell.provenance is not None
        assert (cell.provenance.started, cell.provenance.not_forked) == ("forked", None)
        assert identity([cell])["started"] == "forked"
        assert len({rank.pid for rank in cell.result.ranks}) == 2
    assert not descendants(os.getpid())


def test_a_forked_rank_is_like_a_fresh_one(tmp_path: Path) -> None:
    """Threads, cores, random state, signals, limits, environment: all that a start hands down."""
    states: dict[str, list[dict[str, Any]]] = {}
    for way in ("forked", "fresh"):
        folder = tmp_path / way
        folder.mkdir()
        fault = ["+fault._target_=fakes.rank_state.WriteState", f"+fault.folder={folder}"]
        report, said = run(tmp_path / f"sweep_{way}", fault, warm=way == "forked")
        assert report.count("done") == 1, said
        states[way] = [json.loads((folder / f"rank{r}.json").read_text()) for r in (0, 1)]
    for forked, fresh in zip(states["forked"], states["fresh"], strict=True):
        assert (forked["own"]["started"], fresh["own"]["started"]) == ("forked", "fresh")
        assert forked["alike"] == fresh["alike"]
        # What a fresh rank has not, none of a fork's timed steps may need.
        assert {m for m in fresh["own"]["modules"] if m not in forked["own"]["modules"]} == set()
        assert forked["own"]["shared_dirty_mib"] < 20, "its pages are its own"
        assert forked["own"]["rss_mib"] == pytest.approx(fresh["own"]["rss_mib"], rel=0.15)
    for way, runs in states.items():
        assert len({rank["own"]["hash"] for rank in runs}) == (1 if way == "forked" else 2)
