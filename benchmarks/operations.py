"""How much faster our kernels are than the straightforward PyTorch version of each operation.

    python benchmarks/operations.py --out docs/results/operations_h200

Both run on the same batch, in turns, in one process: a block of calls of one, then of the other.
A block's time is that between two CUDA events around it, so what the host takes to launch counts
where the device waits for it. The figure is the median of the blocks' ratios with its 95 %
interval (order statistics). Results are compared before anything is timed.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from scipy.stats import binom

from scalewise.datasets.synthetic import PointClouds, SensorStreams
from scalewise.operations.sensors import Fusion, Voxelize

CALLS = 20


def cases() -> Iterator[tuple[str, Callable[[str], torch.nn.Module], Any]]:
    """Name, builder from an implementation's name, and a batch on the device."""
    for samples in (1, 4, 64, 512):
        data = SensorStreams([30, 100, 200], [512, 64, 12], samples=samples)
        batch = to_device(data.train.__getitems__(range(samples)))
        yield f"fusion, batch {samples}", Fusion, batch
    for points in (50_000, 500_000, 2_000_000):
        clouds = PointClouds(points=points, samples=1).train.__getitems__([0])
        batch = to_device(clouds)
        for mode in ("count", "occupancy", "mean", "max"):
            yield f"voxel {mode}, {points} points", voxelizer(mode), batch


def voxelizer(mode: Any) -> Callable[[str], torch.nn.Module]:
    return lambda kind: Voxelize(mode, implementation=kind).cuda()


def to_device(batch: Any) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch.cuda()
    return tuple(to_device(part) for part in batch)


def block_ms(operation: torch.nn.Module, batch: Any) -> float:
    """Milliseconds a call."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(CALLS):
        operation(batch)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / CALLS


def median_interval(values: list[float]) -> tuple[float, float]:
    """95 % interval of the median by order statistics."""
    ordered, count = sorted(values), len(values)
    low = int(binom.ppf(0.025, count, 0.5))
    return ordered[max(low - 1, 0)], ordered[min(count - low, count - 1)]


@torch.no_grad()
def compare(name: str, build: Callable[[str], torch.nn.Module], batch: Any, blocks: int) -> Any:
    batched, kernels = build("batched"), build("triton")
    torch.testing.assert_close(kernels(batch), batched(batch))
    for operation in (batched, kernels):
        block_ms(operation, batch)
    times = [(block_ms(batched, batch), block_ms(kernels, batch)) for _ in range(blocks)]
    ratios = [slow / fast for slow, fast in times]
    low, high = median_interval(ratios)
    return {
        "case": name,
        "batched_ms": statistics.median(t[0] for t in times),
        "triton_ms": statistics.median(t[1] for t in times),
        "speedup": statistics.median(ratios),
        "speedup_low": low,
        "speedup_high": high,
        "blocks": blocks,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=30)
    parser.add_argument("--out", type=Path, help="folder for operations.json")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("found no NVIDIA GPU; the kernels run on nothing else")
    rows = []
    print(f"{'case':34} {'batched ms':>10} {'triton ms':>10} {'speedup':>8}  95 % interval")
    for name, build, batch in cases():
        row = compare(name, build, batch, arguments.blocks)
        rows.append(row)
        print(
            f"{name:34} {row['batched_ms']:10.4f} {row['triton_ms']:10.4f} "
            f"{row['speedup']:7.2f}x  {row['speedup_low']:.2f}-{row['speedup_high']:.2f}"
        )
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        result = {
            "command": "python benchmarks/operations.py",
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "calls_per_block": CALLS,
            "cases": rows,
        }
        path = arguments.out / "operations.json"
        path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
