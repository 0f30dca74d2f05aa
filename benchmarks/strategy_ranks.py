"""One rank of ``strategies.py``: trains each variant as a cell and reads its records."""

from __future__ import annotations

import argparse
import gc
import tempfile
from typing import Any

from strategy_variants import VARIANTS, overrides_of
from team import compose, my_place


class Trainee:
    """This process, on its device, for as long as it lives."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._place: Any = None

    def train(self, name: str) -> dict[str, Any] | None:
        """What this rank recorded of a variant; None where the first rank trains alone."""
        overrides = self._overrides(name)
        if self._place is None:
            # Asked once: Lightning takes WORLD_SIZE out of the environment after training.
            _, self._place = my_place(overrides)
        from scalewise.config import build_cell
        from scalewise.records import CellFolder
        from scalewise.train import RankContext, experiment

        cell, place = build_cell(compose(overrides)), self._place
        if cell.strategy.kind == "single":
            if not place.is_first:
                return None
            place = RankContext(0, 0, 1, place.device)
        held_mib = _fresh_memory(place.device.kind)
        with tempfile.TemporaryDirectory() as path:
            folder = CellFolder(path)
            experiment.run(cell, folder, place)
            return {**_recorded(folder, place.rank), **_settled(), "held_before_mib": held_mib}

    def _overrides(self, name: str) -> list[str]:
        given = self._arguments
        settled = given.deterministic == "true"
        return overrides_of(VARIANTS[name], given.device, given.devices, given.steps, settled)


def _fresh_memory(kind: str) -> float | None:
    """Let go of the variant before; what is still held is in every peak that follows, in MiB."""
    import torch

    gc.collect()
    if kind != "cuda":
        return None
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated() / 2**20


def _recorded(folder: Any, rank: int) -> dict[str, Any]:
    from scalewise.records import read_metrics, read_steps

    summary = folder.load_rank(rank)
    rows = read_metrics(folder.metrics_path(rank))
    steps = read_steps(folder.steps_path(rank), rank).timed()
    sent = summary.communication
    return {
        "losses": [row.values["train_loss"] for row in rows if "train_loss" in row.values],
        "step_ms": steps.column("step").tolist(),
        "timeline": steps.timeline,
        "samples_fed": summary.samples_fed,
        "data_shard": summary.data_shard,
        "parameters_total": summary.parameters_total,
        "optimizer_state_bytes": summary.optimizer_state_bytes,
        "payload_bytes_per_step": sent.payload_bytes_per_step if sent else None,
        "peak_allocated_mib": summary.peak_allocated_mib,
        "probed_samples_per_s": summary.probed_samples_per_s,
        "missing": dict(summary.missing),
    }


def _settled() -> dict[str, Any]:
    """How this process really computed and communicated."""
    import torch
    from torch import distributed

    group = distributed.get_backend_config() if distributed.is_initialized() else None
    return {
        "process_group": group,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "tf32": torch.backends.cuda.matmul.allow_tf32,
    }
