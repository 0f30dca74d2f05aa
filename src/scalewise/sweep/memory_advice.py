"""What to change in a cell that ran out of memory. Torch-free."""

from __future__ import annotations

from scalewise.config import CellConfig

_WHOLE_MODELS = ("single", "ddp")
"""Strategies under which every device holds the whole model."""

MORE_FOR_THE_JOB = "to ask SLURM for more of the host's: a larger hydra.launcher.mem_gb_per_device"
"""Of a job that ran out of its host's memory."""


def memory_advice(cell: CellConfig, world_size: int) -> str:
    """Settings that need less memory, in words, those that cost least first; empty for none."""
    if cell.workload != "train":
        return ""
    remedies = [*_smaller_batches(cell, world_size)]
    if cell.precision.name in ("fp32", "tf32"):
        remedies.append("precision=bf16-mixed")
    if not cell.execution.activation_checkpointing:
        remedies.append("execution.activation_checkpointing=true (for a model of repeated blocks)")
    if cell.strategy.kind in _WHOLE_MODELS:
        remedies.append("strategy=fsdp (divides parameters and optimizer over the devices)")
    return "what needs less memory: " + ", ".join(remedies) if remedies else ""


def _smaller_batches(cell: CellConfig, world_size: int) -> list[str]:
    """Ways to feed fewer samples at once; none where a device has a single one already."""
    each = cell.per_device_batch_size(world_size)
    if each == 1 or cell.batch_size == "auto":
        return []
    remedies = [f"a smaller batch_size ({cell.batch_size} now, {each} a device)"]
    if each % 2 == 0 and cell.batch_size % 2 == 0:
        batches = 2 * cell.accumulate_grad_batches
        half = f"batch_size={cell.batch_size // 2} accumulate_grad_batches={batches}"
        remedies = [f"{half} (as many samples a step, {each // 2} at once on a device)"]
    if cell.strategy.kind in _WHOLE_MODELS:
        remedies.append("batch_size=auto (searches the largest that fits)")
    return remedies
