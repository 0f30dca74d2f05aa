"""Sweeps whose ranks are forked from a process that has imported everything."""

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
from scalewise.sweep import Engine, LocalConfig, LocalExecutor, SweepReport, make_display
from scalewise.sweep.plan import plan

TYPED = [
    "strategy=ddp", "strategy.devices=2", "hardware=cpu", "tracking=none", "max_steps=4",
    "warmup_steps=1", "sweep.retries=0",
]  # fmt: skip


def run(folder: Path, *cells: list[str], warm: bool) -> tuple[SweepReport, str]:
    """A sweep of these cells, and what it said."""
    typed = [[*TYPED, *cell] for cell in cells]
    said = io.StringIO()
    engine = Engine(folder, LocalExecutor(LocalConfig(warm=warm)), make_display(said))
    return engine.run(plan([asked(*t) for t in typed], 0)), said.getvalue()


def test_a_forked_rank_is_like_a_fresh_one(tmp_path: Path) -> None:
    """Threads, cores, random state, signals, limits, environment: all that a start hands down.

    Beside it a cell fails as a fresh one does.
    """
    states: dict[str, list[dict[str, Any]]] = {}
    for way in ("forked", "fresh"):
        folder = tmp_path / way
        folder.mkdir()
        fault = ["+fault._target_=fakes.rank_state.WriteState", f"+fault.folder={folder}"]
        fails = [["dataset.features=40"]] if way == "forked" else []
        report, said = run(tmp_path / f"sweep_{way}", fault, *fails, warm=way == "forked")
        assert report.count("done") == 1, said
        for ending in report.endings.values():
            assert ending.outcome == "done" or (ending.cause, "40" in ending.message) == (
                "config", True,
            )  # fmt: skip
        assert "start without it" not in said and not descendants(os.getpid())
        (cell,) = [cell for cell in load_sweep(tmp_path / f"sweep_{way}").cells if cell.result]
        assert cell.provenance.started == identity([cell])["started"] == way
        assert (cell.provenance.not_forked is None) == (way == "forked")
        assert len({rank.pid for rank in cell.result.ranks}) == 2
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
