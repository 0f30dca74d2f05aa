"""What the benchmarks train: networks by name, each device with a batch of its own."""

from __future__ import annotations

_GPT2 = ("model=gpt2", "dataset=stdlib", "optimizer=adamw", "precision=bf16-mixed")
_NETWORKS: dict[str, tuple[tuple[str, ...], int]] = {
    "gpt2": (_GPT2, 16),
    "gpt2_short": ((*_GPT2, "model.layers=2"), 16),
    "gpt2_tiny": (("model=gpt2_tiny", "dataset=stdlib", "optimizer=adamw"), 32),
    "large": (("model=large", "dataset=tabular"), 64),
    "medium": (("model=medium", "dataset=tabular"), 128),
}
"""Overrides, and the samples of one device."""

WORKLOADS: dict[str, tuple[str, ...]] = {
    name: (*overrides, f"batch_size={samples}", "scaling=weak")
    for name, (overrides, samples) in _NETWORKS.items()
}
