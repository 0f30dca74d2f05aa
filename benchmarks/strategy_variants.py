"""What ``strategies.py`` trains, what it is compared with, and how far the two may be apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

LAST = 10
"""Steps at the end of a training whose mean loss is compared as well."""
LEARNS = 0.9
"""A baseline's mean loss over the last ten steps, relative to its first ten, is below this: two
losses that stay where they began would agree whatever the strategy does."""


@dataclass(frozen=True)
class Difference:
    """How far a training is from its baseline, relative to that."""

    largest: float
    """Of the loss in any step."""
    last_ten: float
    """Of the mean loss over the last :data:`LAST` steps."""


@dataclass(frozen=True)
class Allowed:
    """The largest :class:`Difference`; None for a part that is not judged."""

    largest: float | None = None
    last_ten: float | None = None

    def admits(self, found: Difference) -> bool:
        """Whether ``found`` is within both limits; NaN never is."""
        pairs = ((found.largest, self.largest), (found.last_ten, self.last_ten))
        return all(limit is None or value <= limit for value, limit in pairs)


EXACT = Allowed(largest=1e-4)
"""For a strategy that computes what one device computes, in another order."""
CLOSE = Allowed(largest=0.05, last_ten=0.01)
"""For gradients that are sent in fewer bits."""
APART = Allowed(last_ten=0.2)
"""For replicas that train alone for some steps: each rank's loss is its own."""


@dataclass(frozen=True)
class Variant:
    """One training. All limits are those of the tests on CPUs (docs/strategies.md)."""

    overrides: tuple[str, ...]
    baseline: str | None = None
    """What its losses are compared with; None for a baseline."""
    allowed: Allowed | None = None
    """None where the difference is only told."""
    team: Literal["replicas", "parts", "offload"] = "replicas"
    """Which variants train in the same processes: a process group, once there, keeps its backend,
    and offloading needs gloo beside NCCL."""
    needs_gpu: bool = False
    uneven: bool = False
    """Give the first device 0.7 of every batch."""


SINGLE = ("strategy=single",)
SGD = ("optimizer=sgd", "optimizer.lr=0.05")
IN_TWO = ("batch_size=8", "accumulate_grad_batches=2")
CLIP = ("gradient_clip_norm=0.2",)
DDP, LOCAL, UNEVEN = ("strategy=ddp",), ("strategy=local_sgd",), ("strategy=heterogeneous",)
FSDP, OFFLOAD = ("strategy=fsdp",), ("strategy=fsdp", "strategy.cpu_offload=true")
POWERSGD = ("strategy.compression=powersgd", "strategy.powersgd_rank=4")
MICROBATCHES = ("strategy.microbatches=4",)

VARIANTS: dict[str, Variant] = {
    # Alone first: a process group, once it is there, stays.
    "single": Variant(SINGLE),
    "single_sgd": Variant((*SINGLE, *SGD)),
    "single_clipped": Variant((*SINGLE, *CLIP)),
    "ddp": Variant(DDP, "single", EXACT),
    "ddp_static_graph": Variant((*DDP, "strategy.static_graph=true"), "single", EXACT),
    "ddp_accumulated": Variant((*DDP, *IN_TWO), "single", EXACT),
    "ddp_fp16": Variant((*DDP, "strategy.compression=fp16"), "single", CLOSE),
    "ddp_bf16": Variant((*DDP, "strategy.compression=bf16"), "single", CLOSE),
    "ddp_powersgd": Variant((*DDP, *POWERSGD), "single", CLOSE),
    "local_sgd_every_step": Variant((*LOCAL, "strategy.period=1", *SGD), "single_sgd", EXACT),
    "local_sgd": Variant((*LOCAL, "strategy.period=4"), "single", APART),
    "heterogeneous": Variant(UNEVEN, "single", EXACT, uneven=True),
    "heterogeneous_auto": Variant(UNEVEN, "single", EXACT),
    "task_parallel": Variant(("strategy=task_parallel",), "single"),
    "fsdp": Variant(FSDP, "single", EXACT, "parts"),
    "fsdp_clipped": Variant((*FSDP, *CLIP), "single_clipped", EXACT, "parts"),
    "fsdp_grad_op": Variant((*FSDP, "strategy.sharding=grad_op"), "single", EXACT, "parts"),
    "tensor": Variant(("strategy=tensor",), "single", EXACT, "parts"),
    "pipeline": Variant(("strategy=pipeline", *MICROBATCHES), "single", EXACT, "parts"),
    "gpipe": Variant(("strategy=gpipe", *MICROBATCHES), "single", EXACT, "parts"),
    "fsdp_offload": Variant(OFFLOAD, "single", EXACT, "offload", needs_gpu=True),
    # The norm of gradients in the host's memory is what goes over gloo.
    "fsdp_offload_clipped": Variant(
        (*OFFLOAD, *CLIP), "single_clipped", EXACT, "offload", needs_gpu=True
    ),
}


def overrides_of(
    variant: Variant, device: str, devices: int, steps: int, settled: bool
) -> list[str]:
    """Everything that makes the cell of a variant, on ``cuda`` or ``cpu``."""
    found = [
        "model=gpt2_tiny", "model.dropout=0", "dataset=stdlib", "dataset.loader.num_workers=0",
        "optimizer=adamw", "precision=fp32", f"hardware={'auto' if device == 'cuda' else 'cpu'}",
        "tracking=none", "validation=never", "log_every_n_steps=1", "batch_size=16",
        f"max_steps={steps}", "warmup_steps=5", f"deterministic={str(settled).lower()}",
        *variant.overrides,
    ]  # fmt: skip
    if "strategy=single" not in variant.overrides:
        found.append(f"strategy.devices={devices}")
    if variant.uneven:
        shares = [0.7, *[0.3 / (devices - 1)] * (devices - 1)]
        found.append(f"strategy.shares=[{','.join(f'{share:.4f}' for share in shares)}]")
    return found


def global_losses(ranks: Sequence[Mapping[str, Any]]) -> list[float]:
    """Mean loss over the samples of each global batch, in the order of steps.

    Args:
        ranks: of each rank ``losses`` (mean over its own samples, one a step, None where not
            finite), ``samples_fed``, and ``data_shard``: ranks that share one fed the same samples,
            which count once; None is a shard of its own.

    Raises ValueError for a loss that is not finite, and ranks of unlike length.
    """
    parts: dict[int, Mapping[str, Any]] = {}
    for number, rank in enumerate(ranks):
        shard = rank["data_shard"]
        parts.setdefault(number if shard is None else shard, rank)
    lengths = sorted({len(part["losses"]) for part in parts.values()})
    if len(lengths) != 1:
        raise ValueError(f"ranks recorded {lengths} losses; as many each were expected")
    fed = sum(part["samples_fed"] for part in parts.values())
    found = []
    for step in range(lengths[0]):
        values = [(part["samples_fed"], part["losses"][step]) for part in parts.values()]
        if any(loss is None or not math.isfinite(loss) for _, loss in values):
            raise ValueError(f"the loss is not finite in step {step + 1}")
        found.append(sum(samples * loss for samples, loss in values) / fed)
    return found


def differences(losses: Sequence[float], alone: Sequence[float]) -> Difference:
    """Of ``losses`` from those of one device. Raises ValueError for unlike numbers of steps."""
    if len(losses) != len(alone) or len(losses) < LAST:
        raise ValueError(
            f"found {len(losses)} losses and {len(alone)} of one device; as many, and {LAST} or "
            "more, were expected"
        )
    largest = max(abs(a - b) / abs(b) for a, b in zip(losses, alone, strict=True))
    return Difference(largest, abs(sum(losses[-LAST:]) / sum(alone[-LAST:]) - 1))


def learns(losses: Sequence[float]) -> bool:
    """Whether a baseline's loss falls far enough to tell a strategy that does not train."""
    return sum(losses[-LAST:]) < LEARNS * sum(losses[:LAST])
