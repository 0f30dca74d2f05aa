"""Weak-scaling efficiency: our training against a bare PyTorch DDP loop, in one run.

    python benchmarks/weak_scaling.py [--devices 2] [--settings large_buckets bf16_compression]
                                      [--rounds 4] [--p2p-off] [--out FILE]
    python benchmarks/weak_scaling.py --workload gpt2_tiny --steps 20 --rounds 2     # without GPUs

GPT-2 124M, bf16-mixed, 1,024 tokens, a fixed batch for each device. Every arm trains on one device
and on all of them: ``bare`` is a loop written by hand, under DistributedDataParallel where there
are several devices; ``ours`` is a cell with everything that its ranks record (without the sampler
that a sweep runs beside them); the others are cells with one of the settings below. An arm's
efficiency is its step time on one device over its step time on all: at a fixed batch for each
device that is the throughput on N over N times that on one. Settings of the strategy alone mean
nothing on one device: ``ours`` on one is theirs too.

All arms run in one process set, in a random order within each round (recorded seed). The one device
is the first; the other ranks meanwhile hold nothing on theirs and wait for a file, so that no
collective spins. A time is the mean of the timed steps on the slowest rank, for all arms alike
between the ends of two optimizer steps: CUDA events on a GPU, else the host's clock. Each round
gives one efficiency for each arm; its interval is a 95 % one of Student's t over the logarithms of
the rounds, that of a difference in points one over the rounds' own differences.

Exit status 1 if ``ours`` is more than 1 point below ``bare``.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from exposed_comm import P2P_OFF
from team import answer, compose, devices, run_team
from weak_scaling_table import merged, show, summarise

WORKLOADS: dict[str, tuple[tuple[str, ...], int]] = {
    "gpt2": (
        (
            "model=gpt2", "dataset=synthetic_tokens", "optimizer=adamw", "precision=bf16-mixed",
        ),
        16,
    ),
    "gpt2_tiny": (("model=gpt2_tiny", "dataset=synthetic_tokens", "optimizer=adamw"), 32),
    "large": (("model=large", "dataset=tabular"), 64),
}  # fmt: skip
"""Overrides, and the batch of one device."""
SETTINGS: dict[str, tuple[str, ...]] = {
    "static_graph": ("strategy.static_graph=true",),
    "large_buckets": ("strategy.static_graph=true", "strategy.bucket_cap_mb=100"),
    "bf16_compression": ("strategy.compression=bf16",),
    "bf16_static": ("strategy.compression=bf16", "strategy.static_graph=true"),
    "compiled": ("execution=compile",),
}
"""Ours with other settings. ``compiled`` compiles anew in every run: minutes, not seconds."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One way of training on so many devices."""

    name: str
    devices: int
    overrides: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return f"{self.name} x{self.devices}"


def main() -> int:
    parser = parser_of_options()
    arguments = parser.parse_args()
    if arguments.as_rank:
        from weak_scaling_ranks import train_rounds

        return train_rounds(arguments, answer)
    names = check(arguments, parser)
    began = time.monotonic()
    ranks = run_team(
        __file__, rank_options(arguments), arguments.devices, P2P_OFF if arguments.p2p_off else None
    )
    rows = merged([rank["rows"] for rank in ranks])
    found = {
        "workload": arguments.workload,
        "batch_per_device": arguments.batch,
        "devices": names,
        "p2p": "off" if arguments.p2p_off else "as found",
        "steps": arguments.steps,
        "warmup_steps": arguments.warmup,
        "rounds": len({row["round"] for row in rows}),
        "rounds_asked": arguments.rounds,
        "seed": arguments.seed,
        "seconds": time.monotonic() - began,
        "versions": ranks[0]["versions"],
        "settings": {name: SETTINGS[name] for name in arguments.settings},
        **summarise(rows, arguments.settings, arguments.devices),
        "rows": rows,
    }
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    show(found)
    return 0 if found["verdict"]["met"] else 1


def parser_of_options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workload", default="gpt2", choices=WORKLOADS)
    parser.add_argument("--devices", type=int, default=2, help="the width compared with one")
    parser.add_argument("--batch", type=int, default=None, help="samples of each device")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=30, help="timed steps of a run")
    parser.add_argument("--warmup", type=int, default=8, help="steps before them")
    parser.add_argument(
        "--settings", nargs="*", default=["large_buckets", "bf16_compression"], choices=SETTINGS
    )
    parser.add_argument("--p2p-off", action="store_true", help="NCCL_P2P_DISABLE=1")
    parser.add_argument("--seed", type=int, default=0, help="of the order of runs")
    parser.add_argument(
        "--limit-s", type=float, default=165.0, help="begin no round that would end later"
    )
    parser.add_argument("--out", type=Path, default=None, help="every run and figure, as JSON")
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    return parser


def check(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> list[str]:
    """Settle the batch; names of the devices. Ends with status 2 for what cannot be done."""
    from scalewise.config import ConfigError, build_cell

    if arguments.batch is None:
        arguments.batch = WORKLOADS[arguments.workload][1]
    for name, least in (("batch", 1), ("rounds", 1), ("steps", 1), ("warmup", 2), ("devices", 2)):
        if getattr(arguments, name) < least:
            found = getattr(arguments, name)
            parser.error(f"--{name}: found {found}; allowed: {least} or more")
    present = devices()
    if len(present) < arguments.devices:
        parser.error(
            f"--devices: found {arguments.devices}, but this host has {len(present)}; "
            "allowed: 2 to that many"
        )
    for arm in arms(arguments.settings, arguments.devices):
        try:
            build_cell(compose(overrides_of(arm, arguments)))
        except (ConfigError, ValueError) as error:
            parser.error(f"{arm.label}: {error}")
    return present[: arguments.devices]


def rank_options(arguments: argparse.Namespace) -> list[str]:
    """The same options for a rank; what only the parent does is left out."""
    options = ["--workload", arguments.workload]
    for name in ("devices", "batch", "rounds", "steps", "warmup", "seed", "limit_s"):
        options += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
    return [*options, "--settings", *arguments.settings]


def arms(settings: Sequence[str], devices: int) -> list[Arm]:
    """Every arm of a round: each name on one device, unless ``ours`` on one is the same."""
    found = [Arm(name, width) for name in ("bare", "ours") for width in (1, devices)]
    for name in dict.fromkeys(settings):
        found.append(Arm(name, devices, SETTINGS[name]))
        if changes_one_device(name):
            found.append(Arm(name, 1, SETTINGS[name]))
    return found


def changes_one_device(setting: str) -> bool:
    """Whether a setting says anything where there is no strategy across devices."""
    return any(not override.startswith("strategy.") for override in SETTINGS[setting])


def overrides_of(arm: Arm, arguments: argparse.Namespace) -> list[str]:
    """What an arm's cell is composed of; the bare loop takes its parts from a cell as well."""
    steps = arguments.steps + arguments.warmup
    across = ["strategy=single"]
    if arm.devices > 1:
        across = ["strategy=ddp", f"strategy.devices={arm.devices}"]
    overrides = [
        *WORKLOADS[arguments.workload][0], *across, *arm.overrides, "scaling=weak",
        f"batch_size={arguments.batch}", f"max_steps={steps}", f"warmup_steps={arguments.warmup}",
        "validation=never", "tracking=none", "dataset.loader.num_workers=0",
    ]  # fmt: skip
    if "dataset=synthetic_tokens" in overrides:
        # One epoch is enough for every arm: none begins another among its timed steps.
        samples = arguments.batch * arguments.devices * (steps + 1)
        overrides.append(f"dataset.train_samples={samples}")
    return overrides


if __name__ == "__main__":
    raise SystemExit(main())
