"""Sweeps whose runs on two devices were the stages of a pipeline."""

from dataclasses import replace
from pathlib import Path

from fakes.recorded import DDP, Spec, repeats, write_sweep
from scalewise.analysis import Analysis, analyse, load_sweep
from scalewise.records import PipelineRecord, SweepFolder

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
    for planned, folder in SweepFolder(path).cells():
        if "pipeline" in planned.name:
            result = folder.load_result()
            ranks = tuple(
                replace(
                    rank,
                    data_shard=0,
                    missing={"arrival": "one after another"},
                    optimizer_state_bytes=(rank.rank + 1) * 2**20,
                    pipeline=PipelineRecord("1f1b", 2, rank.rank, microbatches),
                )
                for rank in result.ranks
            )
            folder.save_result(replace(result, ranks=ranks))
    return analyse(load_sweep(path))
