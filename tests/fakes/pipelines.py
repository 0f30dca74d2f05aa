"""Sweeps whose runs on two devices were the stages of a pipeline."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from fakes.recorded import DDP, Spec, edit_ranks, repeats, write_sweep
from scalewise.analysis import Analysis, analyse, load_sweep

PIPE_MS = {"data_wait": 0.1, "h2d": 0.1, "forward": 2.0, "backward": 4.0, "optimizer": 0.5}
PIPE = replace(
    DDP,
    strategy="pipeline",
    phases_ms={**PIPE_MS, "other": 2.0},
    config={"strategy": {"name": "pipeline", "kind": "pipeline"}},
)


def pipelined(path: Path, spec: Spec, microbatches: int = 4) -> Analysis:
    """A sweep whose runs on two devices were the two stages of a pipeline."""
    write_sweep(path, [*repeats(Spec(), [1.0, 1.01]), *repeats(spec, [1.0, 1.01])])

    def as_stage(rank: dict[str, Any]) -> None:
        place = rank["rank"]
        of = {"schedule": "1f1b", "stages": 2, "stage": place, "microbatches": microbatches}
        rank |= {"data_shard": 0, "missing": {"arrival": "one after another"}, "pipeline": of}
        rank["optimizer_state_bytes"] = (place + 1) * 2**20

    edit_ranks(path, as_stage, "*pipeline*")
    return analyse(load_sweep(path))
