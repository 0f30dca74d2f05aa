"""The published matrix of 1, 2, 4 and 8 GPUs, in calls of ten minutes that go on where one ended.

    python benchmarks/h200_matrix.py --out FOLDER [--devices 1,2,4] [--limit-s 580]
                                     [--go-on ARCHIVE] [--ag-news FILE] [PART ...]
    python benchmarks/h200_matrix.py --out FOLDER --rehearse --devices 1,2,4,8

The parts run in the order of their value. After each, ``FOLDER/results.tar.gz`` holds all records
and what every part printed. ``--go-on`` takes the archive of an earlier call: parts that ended
well are not run again, and a sweep that was cut off runs what it lacks. The records are then
checked: no stall, no context of one rank on another rank's GPU, samples shared out without
overlap, warm-up ended. ``--rehearse`` trains small models on CPUs instead, over gloo.

Exit status 1 if a part failed, did not run or did not pass the check.
"""

from __future__ import annotations

import argparse
import json
import sys
import tarfile
import time
from pathlib import Path

from on_gpus import P2P_OFF, Part, run

import scalewise
from scalewise.analysis import configurations, load_sweep
from scalewise.analysis.disturbances import disturbances

WORKLOADS = {
    "gpt2": "experiment=gpt2_scaling batch_size=32",
    "gpt2_8": "experiment=gpt2_scaling batch_size=8",
    "agnews_base": "model=text_base {text} optimizer=adamw precision=bf16-mixed batch_size=32",
    "agnews_optimized": (
        "model=text_optimized {text} optimizer=adamw precision=bf16-mixed batch_size=128"
    ),
    "mlp": "model=medium,large dataset=tabular dataset.samples=65536 batch_size=128",
    "medium": "model=medium dataset=tabular dataset.samples=65536 batch_size=128",
}
SMALL = {
    "gpt2": "model=gpt2_tiny dataset=stdlib batch_size=16",
    "gpt2_8": "model=gpt2_tiny dataset=stdlib batch_size=8",
    "agnews_base": "model=text_small {text} batch_size=16",
    "agnews_optimized": "model=text_small {text} batch_size=32",
    "mlp": "model=medium dataset=tabular dataset.samples=65536 batch_size=128",
    "medium": "model=medium dataset=tabular dataset.samples=65536 batch_size=128",
}
ON_CPUS = "hardware=cpu hardware.cores_per_device=1 measure.min_time_s=1 sweep.budget_min=1"


def make_parts(devices: str, text: str, rehearse: bool) -> dict[str, Part]:
    """The parts by name, the most valuable first. ``devices``: their numbers, with commas."""
    most = max(int(number) for number in devices.split(","))
    workloads = SMALL if rehearse else WORKLOADS
    host = ON_CPUS if rehearse else "hydra.launcher.warm=true sweep.budget_min=4.5"

    def sweep(workload: str, settings: str, limit_s: float = 560.0, **more: str) -> Part:
        words = [
            "train.py hydra.sweep.dir={out}/sweep tracking=none validation=never -m",
            f"devices={devices}", workloads[workload].format(text=text), host, settings,
        ]  # fmt: skip
        return Part(most, limit_s, " ".join(words), tuple(more.items()))

    both, off = "scaling=strong,weak", dict(P2P_OFF)
    eager, weak = f"execution=eager {both}", "execution=eager scaling=weak"
    parts = {
        "gpt2": sweep("gpt2", eager),
        "gpt2_8": sweep("gpt2_8", weak),
        "agnews_optimized": sweep("agnews_optimized", eager),
        "agnews_base": sweep("agnews_base", eager),
        "mlp": sweep("mlp", eager),
    }
    if not rehearse:
        parts |= {
            "mlp_cudagraph": sweep("mlp", f"execution=cudagraph {both}"),
            "gpt2_p2p_off": sweep("gpt2", eager, **off),
            "medium_p2p_off": sweep("medium", eager, 300, **off),
            "gpt2_compile": sweep("gpt2", f"execution=compile {both}"),
            "agnews_compile": sweep("agnews_optimized", f"execution=compile {both}"),
            "overhead": Part(
                most, 560,
                f"benchmarks/overhead.py --workload gpt2 --devices {most} --set batch_size=8"
                " --budget-s 500 --out {out}/gpt2.json",
            ),
        }  # fmt: skip
    parts["one_slow_rank"] = Part(
        2, 560,
        f"benchmarks/self_test.py --device {'cpu' if rehearse else 'cuda'} --only slow_rank"
        " --healthy 3 --records {out}/sweep --out {out}",
    )  # fmt: skip
    return parts


def check(name: str, folder: Path) -> list[str]:
    """What is wrong with the records of a part; nothing where it keeps none."""
    if not (folder / "sweep").is_dir():
        return []
    tables = scalewise.load(folder / "sweep")
    wrong = [
        f"{name}: {cell.cell} is {cell.state}"
        for cell in tables.cells.itertuples()
        if cell.state != "done"
    ]
    for timed in (t for c in configurations(load_sweep(folder / "sweep")) for t in c.runs):
        found = [one for one in disturbances(timed.cell) if one.gravity != "note"]
        told = [f"{one.code}: {one.detail}" for one in found]
        told += [f"{one.code}: {one.text}" for one in timed.invalid]
        wrong += [f"{name}: {timed.cell.path.name}: {line}" for line in told]
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="these alone")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--devices", default="1,2,4", help="numbers of devices (default 1,2,4)")
    parser.add_argument("--limit-s", type=float, default=580.0, help="for this call")
    parser.add_argument("--go-on", type=Path, metavar="ARCHIVE", help="of an earlier call")
    parser.add_argument("--ag-news", type=Path, metavar="FILE", help="CSV; else synthetic text")
    parser.add_argument("--rehearse", action="store_true", help="small models on CPUs")
    options = parser.parse_args()
    text = "dataset=synthetic_text dataset.train_samples=65536"
    if options.ag_news:
        text = f"dataset=ag_news dataset.path={options.ag_news}"
    parts = make_parts(options.devices, text, options.rehearse)
    unknown = sorted(set(options.parts) - set(parts))
    if unknown:
        parser.error(f"PART: found {', '.join(unknown)}; allowed: {', '.join(parts)}")
    options.out.mkdir(parents=True, exist_ok=True)
    if options.go_on is not None:
        with tarfile.open(options.go_on) as archive:
            archive.extractall(options.out, filter="data")
    ends = time.monotonic() + options.limit_s
    kept = options.out / "parts/status.json"
    status: dict[str, str] = json.loads(kept.read_text()) if kept.is_file() else {}
    wrong: list[str] = []
    for name in options.parts or parts:
        seconds = 0.0
        if status.get(name) != "ok":
            status[name], seconds = run(name, parts[name], options.out, ends)[1:]
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(status, indent=1))
        wrong += check(name, options.out / "parts" / name)
        print(f"{name:17} {status[name]:24} {seconds:6.1f} s", flush=True)
    print("\n".join(wrong or ["The check found nothing."]))
    return int(bool(wrong) or any(one != "ok" for one in status.values()))


if __name__ == "__main__":
    sys.exit(main())
