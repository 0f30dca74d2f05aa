"""What real GPUs must show again after a change, in parts that fit into a rented half hour.

    python benchmarks/on_gpus.py --list
    python benchmarks/on_gpus.py --out FOLDER [--limit-s 580] PART [PART ...]

Parts run one after the other, each under its own time limit and never past the whole one's. After
every part ``FOLDER/results.tar.gz`` holds all parts until then, with what each printed: a host that
is taken away in the middle takes only the part that ran. A table of the parts comes last. Exit
status 1 if a part failed or did not run.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GRACE_S = 15.0
"""From SIGINT, at which a sweep keeps what is finished, to SIGKILL."""


@dataclass(frozen=True, slots=True)
class Part:
    """One command; ``{out}`` in it is the part's own folder. ``devices``: GPUs that it needs."""

    devices: int
    limit_s: float
    command: str
    environment: tuple[tuple[str, str], ...] = ()


P2P_OFF = (("NCCL_P2P_DISABLE", "1"),)
"""What a host without NVLink and without peer access does: through host memory."""
TRAIN = "train.py hydra.sweep.dir={out}/sweep tracking=none -m"
ANATOMY = "experiment=gpt2_scaling strategy=ddp profile.window=false,true"

PARTS: dict[str, Part] = {
    "exposed": Part(2, 150, "benchmarks/exposed_comm.py --out {out}/exposed.json"),
    "exposed_p2p_off": Part(
        2, 150, "benchmarks/exposed_comm.py --p2p-off --out {out}/exposed.json"
    ),
    "overhead_gpt2": Part(
        2, 560,
        "benchmarks/overhead.py --workload gpt2 --set batch_size=8 --budget-s 520"
        " --out {out}/gpt2.json",
    ),
    "overhead_mlp": Part(
        2, 560, "benchmarks/overhead.py --workload large --budget-s 520 --out {out}/large.json"
    ),
    "self_test": Part(
        2, 530,
        "benchmarks/self_test.py --device cuda --warm --healthy 10 --records {out}/sweep"
        " --out {out}",
    ),
    "doctor": Part(2, 90, "-m scalewise doctor --devices 2 --out {out}"),
    "anatomy": Part(2, 200, f"{TRAIN} {ANATOMY} repeats=2"),
    "anatomy_p2p_off": Part(2, 200, f"{TRAIN} {ANATOMY} repeats=2", P2P_OFF),
    "bare_loop": Part(
        1, 500,
        "benchmarks/bare_loop.py --workloads medium large gpt2 --out {out}/bare_loop.json",
    ),
    "gpu_tests": Part(
        2, 560, "-m pytest tests/gpu -m gpu -q --maxfail=4 --durations=0 --basetemp={out}/tmp"
    ),
    "soak": Part(
        0, 590, "benchmarks/soak.py --kills 200 --soaks 8 --limit-s 540 --out {out}/soak.json"
    ),
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--out", type=Path, default=Path("results"), help="where the archive goes")
    parser.add_argument("--limit-s", type=float, default=580.0, help="for all parts together")
    parser.add_argument("--list", action="store_true", help="print what there is, and run nothing")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.parts) - set(PARTS))
    if unknown:
        parser.error(f"PART: found {', '.join(unknown)}; allowed: {', '.join(PARTS)}")
    if arguments.list or not arguments.parts:
        for name, part in PARTS.items():
            print(f"{name:17} {part.devices} GPUs, {part.limit_s:.0f} s: {part.command}")
        return 0
    ends = time.monotonic() + arguments.limit_s
    rows = [run(name, PARTS[name], arguments.out, ends) for name in arguments.parts]
    for name, status, seconds in rows:
        print(f"{name:17} {status:22} {seconds:6.1f} s")
    return 0 if all(status == "ok" for _, status, _ in rows) else 1


def run(name: str, part: Part, out: Path, ends: float) -> tuple[str, str, float]:
    """Run one part and archive everything until then: its name, how it ended, and its seconds."""
    folder = (out / "parts" / name).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    limit_s = min(part.limit_s, ends - began - GRACE_S)
    if limit_s < part.limit_s / 3:
        return name, f"not run: {max(limit_s, 0):.0f} s left", 0.0
    words = [sys.executable, *shlex.split(part.command.format(out=folder))]
    with (folder / "printed.txt").open("w") as printed:
        status = _wait(words, dict(os.environ, **dict(part.environment)), printed.fileno(), limit_s)
    seconds = time.monotonic() - began
    print(f"== {name}: {status} after {seconds:.1f} s")
    print("\n".join((folder / "printed.txt").read_text(errors="replace").splitlines()[-25:]))
    sys.stdout.flush()
    with tarfile.open(out / "results.tar.gz", "w:gz") as archive:
        archive.add(out / "parts", "parts", filter=_without_weights)
    return name, status, seconds


def _wait(words: Sequence[str], environment: dict[str, str], stdout: int, limit_s: float) -> str:
    process = subprocess.Popen(
        words, cwd=ROOT, env=environment, stdout=stdout, stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip
    try:
        status = process.wait(limit_s)
        return "ok" if status == 0 else f"exit status {status}"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return f"stopped at {limit_s:.0f} s"


def _without_weights(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if member.name.endswith((".ckpt", ".pt")) else member


if __name__ == "__main__":
    sys.exit(main())
