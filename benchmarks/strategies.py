"""Does every strategy train on these devices what one device trains?

    python benchmarks/strategies.py [--devices 2] [--device cuda|cpu] [--only NAME ...]
                                    [--steps 50] [--out FILE]

Every variant trains the small GPT-2 on real text from one seed, in fp32 (TF32 off), with the same
samples in every global batch. The loss of each of these is compared with that of the same training
on one device. The tests do so on CPUs under gloo; this does it on GPUs under NCCL.

Variants go one after the other through the same processes. One that raises, or takes longer than
--limit-s, costs itself only: fresh processes go on after it. The table has for each variant the
largest relative difference of the loss in any step and that of its mean over the last ten steps,
each beside what is allowed, the median time of a step, the payload handed to all-reduce in a
step (of a rank; "-" where a strategy has no hook that counts it) and the allocator's peak of each
rank. Exit status 1 if one disagrees, fails or did not run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from strategy_variants import (
    LAST,
    VARIANTS,
    Variant,
    differences,
    global_losses,
    learns,
)
from watched_team import Outcome, run_tasks, work_through

FEWEST_STEPS = 2 * LAST
DETERMINISTIC = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
"""Without it cuBLAS refuses deterministic=true, and it is read when the first GPU is used."""


def main() -> int:
    parser = parser_of_options()
    arguments = parser.parse_args()
    if arguments.as_rank:
        from strategy_ranks import Trainee

        work_through(arguments.only, Trainee(arguments).train)
    host = describe(arguments, check(arguments, parser))
    began, outcomes = time.monotonic(), {}
    try:
        for outcome in train_all(arguments):
            outcomes[outcome.task] = outcome
            how = outcome.error or "trained"
            print(f"{outcome.task:22} {how} ({outcome.seconds:.1f} s)", flush=True)
    except KeyboardInterrupt:
        print("interrupted: what has ended until here is kept")
    found = {
        **host,
        "seconds": time.monotonic() - began,
        "variants": {name: judged(name, outcomes, arguments) for name in chosen(arguments)},
    }
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    show(found)
    return 0 if all(one["agrees"] is not False for one in found["variants"].values()) else 1


def parser_of_options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--devices", type=int, default=2, choices=(2, 4))
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help=", ".join(VARIANTS))
    parser.add_argument("--steps", type=int, default=50, help="optimizer steps of each variant")
    parser.add_argument("--limit-s", type=float, default=40.0, help="for one variant")
    parser.add_argument(
        "--deterministic", default="true", choices=("true", "false"),
        help="false, where torch has no deterministic kernel for something",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    return parser


def check(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> list[str]:
    """Names of the devices to train on; ends with exit status 2 for what cannot be done."""
    from scalewise.config import HardwareConfig
    from scalewise.gpu import HostMismatch, discover

    if arguments.steps < FEWEST_STEPS:
        parser.error(f"--steps: found {arguments.steps}; allowed: {FEWEST_STEPS} or more")
    unknown = sorted(set(arguments.only) - set(VARIANTS))
    if unknown:
        parser.error(f"--only: found {', '.join(unknown)}; allowed: {', '.join(VARIANTS)}")
    try:
        slots = discover(HardwareConfig(arguments.device, kind=arguments.device)).slots
    except HostMismatch as error:
        parser.error(f"--device {arguments.device}: {error}")
    if len(slots) < arguments.devices:
        parser.error(
            f"--devices: found {arguments.devices}, but this host has {len(slots)} of kind "
            f"{arguments.device}; allowed: at most that"
        )
    return [slot.name for slot in slots[: arguments.devices]]


def chosen(arguments: argparse.Namespace) -> list[str]:
    """The variants asked for and what they are compared with, in their order."""
    wanted = set(arguments.only or VARIANTS)
    wanted |= {baseline for name in wanted if (baseline := VARIANTS[name].baseline)}
    return [name for name in VARIANTS if name in wanted]


def train_all(arguments: argparse.Namespace) -> Iterator[Outcome]:
    """What became of each variant that can run here, team by team."""
    names = [name for name in chosen(arguments) if runs_on(name, arguments.device)]
    environment = DETERMINISTIC if arguments.deterministic == "true" else {}
    options = [
        "--device", arguments.device, "--devices", str(arguments.devices),
        "--steps", str(arguments.steps), "--deterministic", arguments.deterministic, "--only",
    ]  # fmt: skip
    for team in dict.fromkeys(VARIANTS[name].team for name in names):
        together = [name for name in names if VARIANTS[name].team == team]
        yield from run_tasks(
            __file__, options, together, arguments.devices, arguments.limit_s, environment
        )


def runs_on(name: str, device: str) -> bool:
    return device == "cuda" or not VARIANTS[name].needs_gpu


def judged(
    name: str, outcomes: Mapping[str, Outcome], arguments: argparse.Namespace
) -> dict[str, Any]:
    """What is kept of a variant. ``agrees`` is None where there is nothing to judge."""
    variant, outcome = VARIANTS[name], outcomes.get(name)
    found: dict[str, Any] = {**asdict(variant), "agrees": False}
    if not runs_on(name, arguments.device):
        return {**found, "agrees": None, "error": "needs GPUs"}
    if outcome is None:
        return {**found, "error": "not run"}
    found["seconds"] = outcome.seconds
    if outcome.error is not None:
        return {**found, "error": outcome.error, "logs": outcome.logs}
    ranks = [one for one in outcome.answers if one is not None]
    try:
        losses = global_losses(ranks)
        if len(losses) != arguments.steps:
            raise ValueError(f"{len(losses)} losses in {arguments.steps} steps")
        return {
            **found, "ranks": ranks, "losses": losses, **compared(variant, losses, outcomes),
        }  # fmt: skip
    except ValueError as error:
        return {**found, "ranks": ranks, "error": str(error)}


def compared(
    variant: Variant, losses: Sequence[float], outcomes: Mapping[str, Outcome]
) -> dict[str, Any]:
    """Differences from the baseline and the verdict; of a baseline, whether it learns.

    Raises ValueError where there is no baseline to compare with.
    """
    if variant.baseline is None:
        return {"agrees": learns(losses)}
    alone = outcomes.get(variant.baseline)
    if alone is None or alone.error is not None:
        raise ValueError(f"{variant.baseline} failed: nothing to compare with")
    found = differences(losses, global_losses(alone.answers[:1]))
    return {
        "largest_relative": found.largest,
        "last_ten_relative": found.last_ten,
        "agrees": variant.allowed.admits(found) if variant.allowed else None,
    }


def describe(arguments: argparse.Namespace, names: Sequence[str]) -> dict[str, Any]:
    """Under what all of this was found."""
    from importlib.metadata import version

    import torch

    uses_nccl = arguments.device == "cuda" and torch.version.cuda is not None
    nccl = torch.cuda.nccl.version() if uses_nccl else None
    return {
        "device": arguments.device,
        "devices": list(names),
        "torch": torch.__version__,
        "lightning": version("pytorch-lightning"),
        "cuda": torch.version.cuda,
        "nccl": None if nccl is None else ".".join(map(str, nccl)),
        "steps": arguments.steps,
        "deterministic": arguments.deterministic == "true",
    }


def show(found: Mapping[str, Any]) -> None:
    print(
        f"\n{len(found['devices'])} x {found['devices'][0]}, torch {found['torch']}, NCCL "
        f"{found['nccl'] or 'not used'}; {found['seconds']:.0f} s\n"
        f"{computed(found['variants'])}\n\n"
        f"{'variant':22}{'steps':>5}{'largest':>10}{'allowed':>8}{'last ten':>10}{'allowed':>8}"
        f"  {'agrees':7}{'step ms':>8}{'sent MiB':>9}  peak MiB"
    )
    for name, one in found["variants"].items():
        if one.get("error"):
            print(f"{name:22}{'not run' if one['agrees'] is None else 'FAILED'}: {one['error']}")
        else:
            print(f"{name:22}{row(one)}")


def computed(variants: Mapping[str, Mapping[str, Any]]) -> str:
    """How the ranks of all variants say that they computed and communicated."""
    ranks = [rank for one in variants.values() for rank in one.get("ranks", [])]
    if not ranks:
        return "nothing was trained"
    groups = sorted({rank["process_group"] for rank in ranks if rank["process_group"]})
    tf32 = "on" if any(rank["tf32"] for rank in ranks) else "off"
    settled = "" if all(rank["deterministic"] for rank in ranks) else "not "
    return (
        f"process groups {'; '.join(groups) or 'none'}; fp32, TF32 {tf32}, {settled}all with "
        "deterministic kernels"
    )


def row(one: Mapping[str, Any]) -> str:
    """A trained variant's line, after its name."""
    ranks, allowed = one["ranks"], one["allowed"] or {}
    steps = zip(*(rank["step_ms"] for rank in ranks), strict=True)
    step_ms = statistics.median(statistics.fmean(step) for step in steps)
    sent_bytes = ranks[0]["payload_bytes_per_step"]
    peaks = [rank["peak_allocated_mib"] for rank in ranks]
    words = ("learns", "STAYS") if one["baseline"] is None else ("yes", "NO")
    agrees = "-" if one["agrees"] is None else words[not one["agrees"]]
    apart = "".join(
        cell(one.get(f"{key}_relative"), "10.1e") + cell(allowed.get(key), "8.0e")
        for key in ("largest", "last_ten")
    )
    sent = cell(None if sent_bytes is None else sent_bytes / 2**20, "9.3f")
    peak = "-" if None in peaks else " / ".join(f"{peak:.1f}" for peak in peaks)
    return f"{len(one['losses']):5}{apart}  {agrees:7}{step_ms:8.2f}{sent}  {peak}"


def cell(value: float | None, form: str) -> str:
    """A number in that format, or a dash as wide."""
    return f"{'-':>{form.partition('.')[0]}}" if value is None else f"{value:{form}}"


if __name__ == "__main__":
    raise SystemExit(main())
