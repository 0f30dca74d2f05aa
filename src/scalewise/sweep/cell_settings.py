"""What the starter of a supervisor tells it of the cell's configuration."""

from __future__ import annotations

from scalewise.config import CellConfig, ConfigError
from scalewise.sweep.job import Settings
from scalewise.sweep.memory_advice import memory_advice


def settings_of(cell: CellConfig, world_size: int) -> Settings:
    """What a supervisor needs of ``cell``, trained by ``world_size`` ranks."""
    try:
        sizes = (cell.per_device_batch_size(world_size), cell.global_batch_size(world_size))
        advice = memory_advice(cell, world_size)
    except ConfigError:  # every rank meets it again, and its word is recorded
        sizes, advice = None, ""
    environment = {
        **cell.hardware.nccl_environment(),
        **cell.execution.rank_environment(world_size),
    }
    if cell.deterministic:
        # cuBLAS is deterministic only with a fixed workspace, and reads this when it starts.
        environment["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    sweep = cell.sweep
    return Settings(
        workload=cell.workload,
        strategy=cell.strategy.name,
        scaling=cell.scaling,
        one_model=cell.strategy.ONE_MODEL,
        batch_sizes=sizes,
        environment=environment,
        timeout_s=sweep.timeout_s,
        hang_timeout_s=sweep.hang_timeout_s,
        start_timeout_s=sweep.start_timeout_s,
        collective_timeout_s=sweep.collective_timeout_s,
        grace_s=sweep.grace_s,
        wrap=sweep.wrap,
        sample_every_s=cell.monitor.interval_s if cell.monitor.devices else None,
        checkpoints=cell.checkpoint.on,
        keep_checkpoints=cell.checkpoint.keep,
        allow_mixed=sweep.allow_mixed,
        dataset_arguments=_texts(cell),
        memory_advice=advice,
    )


def _texts(cell: CellConfig) -> dict[str, str]:
    """Arguments of the dataset that may name a file."""
    return {k: v for k, v in cell.dataset.arguments.items() if isinstance(v, str)}
