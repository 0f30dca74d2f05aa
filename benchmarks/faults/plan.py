"""What the self-test plants, how strongly, and into which workload.

Everything here is known to the test alone: the analysis sees the records of the runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

DeviceKind = Literal["cpu", "cuda"]

PAIR = ("strategy=ddp", "strategy.devices=2")
ALONE = ("strategy=single",)
CROWDED = "contention"


@dataclass(frozen=True)
class Magnitude:
    """One strength of a fault."""

    words: str
    overrides: tuple[str, ...]


@dataclass(frozen=True)
class Fault:
    """One fault, weakest magnitude first."""

    name: str
    expected: str
    """The cause that must be the largest loss, or the code of a finding."""
    magnitudes: tuple[Magnitude, ...]
    needs_single: bool = False
    """Whether the same configuration has to run on one device too."""
    is_healthy: bool = False
    """Whether only the host is at fault: nothing else may be named then."""
    is_configuration: bool = False
    """Whether plain keys of the configuration are the fault."""
    more: tuple[str, ...] = ()
    """Further overrides, at every magnitude."""

    def overrides(self, strength: int) -> tuple[str, ...]:
        return (
            "+fault._target_=faults.plant.PlantedFault",
            f"+fault.name={self.name}",
            f"+fault.kind={'configuration' if self.is_configuration else self.name}",
            *self.more,
            *self.magnitudes[strength].overrides,
        )


@dataclass(frozen=True)
class Workload:
    """What is trained on two devices, and the faults that are planted into it."""

    device: DeviceKind
    overrides: tuple[str, ...]
    healthy: tuple[tuple[str, ...], ...]
    """Variants of the healthy twin that share the healthy runs between them."""
    faults: tuple[Fault, ...]


@dataclass(frozen=True)
class Ask:
    """One configuration to run: the overrides of a cell and how often."""

    overrides: tuple[str, ...]
    repeats: int


def asks(
    workload: Workload,
    faults: Sequence[Fault],
    strengths: Sequence[int],
    healthy: int,
    planted: int = 1,
) -> Iterator[Ask]:
    """Every configuration of a self-test: ``healthy`` healthy runs, ``planted`` of each fault."""
    variants = workload.healthy
    for i, variant in enumerate(variants):
        share = healthy // len(variants) + (i < healthy % len(variants))
        if share:
            yield Ask((*PAIR, *variant), share)
    for fault in faults:
        for strength in strengths:
            yield Ask((*PAIR, *fault.overrides(strength)), planted)
            if fault.needs_single:
                yield Ask((*ALONE, *fault.overrides(strength)), planted)


def _by_ms(values: Sequence[int], *more: str) -> tuple[Magnitude, ...]:
    return tuple(Magnitude(f"{ms} ms", (f"+fault.ms={ms}", *more)) for ms in values)


def _skew(*shares: float) -> tuple[Magnitude, ...]:
    return tuple(Magnitude(f"{share:.0%} more", (f"+fault.excess={share}",)) for share in shares)


_RANK_1 = ("+fault.rank=1",)
_RECORDED = (
    Fault("throttled_replay", "throttled", tuple(
        Magnitude(f"{mhz} of 1980 MHz", (f"+fault.mhz={mhz}",)) for mhz in (1950, 1780, 1200)
    ), more=("monitor.devices=false",)),
    Fault("per_replica_import", "counted_batch", tuple(
        Magnitude(f"{digits} digits", (f"+fault.digits={digits}",)) for digits in (1, 2, 4)
    )),
)  # fmt: skip
"""Faults of what is recorded: they are the same on any device."""
_COMMON_STALL = Fault("common_stall", "common_stall", _by_ms((100, 200, 400)))
_LONG = ("max_steps=215",)
"""Four times one step in fifty, behind the warm-up."""


def cpu_workload(cores_per_rank: int) -> Workload:
    """The published large network, 256 samples a rank: a healthy step is mostly computing."""
    one, four = (f"+fault.processes={n * cores_per_rank}" for n in (1, 4))
    crowds = (
        Magnitude("1 a core of rank 0", (one, "+fault.rank=0")),
        Magnitude("1 a core", (one,)),
        Magnitude("4 a core", (four,)),
    )
    return Workload(
        "cpu",
        (
            "hardware=cpu", f"hardware.cores_per_device={cores_per_rank}",
            "model=large", "dataset=tabular", "dataset.samples=8192", "batch_size=512",
            "max_steps=45", "warmup_steps=5", "validation=never", "tracking=none",
            "monitor.devices=false",
        ),
        ((), _LONG),
        (
            Fault("slow_rank", "waiting", _by_ms((2, 10, 40)), more=_RANK_1),
            Fault("slow_loader", "loader", _by_ms((2, 10, 40))),
            Fault("skewed_shards", "waiting", _skew(0.02, 0.1, 0.5), more=_RANK_1),
            Fault("no_sampler", "shards_overlap", tuple(
                Magnitude(f"{n} samples", (f"dataset.samples={n}",)) for n in (16384, 8192, 4096)
            )),
            Fault("stall", "long_steps", _by_ms((100, 300, 1000), *_LONG)),
            _COMMON_STALL,
            # Over gloo, what the gradients take outlasts what a small batch saves of the work.
            Fault("small_batch", "transfer", tuple(
                Magnitude(f"batch {n}", (f"batch_size={n}",)) for n in (128, 16, 2)
            ), needs_single=True, is_configuration=True),
            Fault("oversubscribe", CROWDED, crowds, is_healthy=True),
            *_RECORDED,
        ),
    )  # fmt: skip


def gpu_workload() -> Workload:
    """GPT-2 124M in bf16, 8 sequences of 1,024 tokens a GPU."""
    return Workload(
        "cuda",
        (
            "hardware=auto", "hardware.kind=cuda",
            "model=gpt2", "dataset=synthetic_tokens", "dataset.train_samples=2048",
            "optimizer=adamw", "precision=bf16-mixed", "batch_size=16",
            "max_steps=70", "warmup_steps=15", "validation=never", "tracking=none",
            "monitor.interval_s=0.25",
        ),
        ((),),
        (
            Fault("slow_rank", "waiting", _by_ms((1, 5, 20)), more=_RANK_1),
            Fault("slow_loader", "loader", _by_ms((5, 20, 50))),
            Fault("skewed_shards", "waiting", _skew(0.125, 0.25, 0.5), more=_RANK_1),
            Fault("no_sampler", "shards_overlap", tuple(
                Magnitude(f"{n} samples", (f"dataset.train_samples={n}",))
                for n in (4096, 2048, 512)
            )),
            Fault("stall", "long_steps", _by_ms((50, 200, 500), *_LONG)),
            _COMMON_STALL,
            Fault("second_context", "rank_on_other_gpu", tuple(
                Magnitude(f"after {s} s", (f"+fault.at_s={s}",)) for s in (1.0, 0.5, 0.25)
            )),
            Fault("p2p_off", "transfer", tuple(
                Magnitude(f"batch {n}", (f"batch_size={n}",)) for n in (64, 32, 16)
            ), is_configuration=True, more=("+hardware.nccl.NCCL_P2P_DISABLE='1'",)),
            Fault("small_batch", "device_work", tuple(
                Magnitude(f"batch {n}", (f"batch_size={n}",)) for n in (16, 8, 2)
            ), needs_single=True, is_configuration=True),
        ),
    )  # fmt: skip
