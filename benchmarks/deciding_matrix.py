"""Verdicts of ``repeats=auto`` and what they cost, beside those of many fixed repeats, for real.

    python benchmarks/deciding_matrix.py --out FOLDER [--repeats 50] [--limit-s 560] OVERRIDE ...
    python benchmarks/deciding_matrix.py --out FOLDER model=large,medium devices=1,2

Both are one command of the product, the automatic one first. The fixed one is ended as Ctrl-C ends
it where the limit comes first: the rounds that are whole by then are its repeats. Device time is of
cells, each from its start to the end of its last rank, times its devices.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd

import scalewise

ROOT = Path(__file__).resolve().parents[1]
GRACE_S = 30.0


def sweep(folder: Path, overrides: list[str], limit_s: float) -> None:
    """Run it, and end it as Ctrl-C does after ``limit_s``."""
    target = f"hydra.sweep.dir={folder}"
    command = [sys.executable, "train.py", "-m", target, "tracking=none", *overrides]
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "COLUMNS": "80"})
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        process.wait(GRACE_S)
        return
    if process.returncode not in (0, 4):
        raise SystemExit(process.returncode)


def read(folder: Path) -> tuple[pd.DataFrame, float]:
    """Verdicts, a row a comparison, and the device seconds of all cells."""
    tables = scalewise.load(folder)
    cells = tables.cells[tables.cells.state == "done"]
    return tables.verdicts.set_index("config_id"), float((cells.took_s * cells.world_size).sum())


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--limit-s", type=float, default=560.0)
    parser.add_argument("overrides", nargs="+")
    arguments = parser.parse_args()
    begin, out = time.monotonic(), arguments.out.resolve()
    sweep(out / "auto", [*arguments.overrides, "repeats=auto"], arguments.limit_s / 2)
    left_s = arguments.limit_s - (time.monotonic() - begin)
    sweep(out / "fixed", [*arguments.overrides, f"repeats={arguments.repeats}"], left_s)
    (auto, auto_s), (fixed, fixed_s) = read(out / "auto"), read(out / "fixed")
    print("configuration: verdict of repeats=auto (runs, speedup) | of fixed repeats")
    same = 0
    for config_id, row in auto.iterrows():
        other = fixed.loc[config_id] if config_id in fixed.index else None
        same += other is not None and row.verdict == other.verdict
        print(f"{row.configuration}: {_told(row)} | {'none' if other is None else _told(other)}")
    print(f"{same} of {len(auto)} verdicts are the same")
    print(f"device time: {auto_s:,.0f} s against {fixed_s:,.0f} s, {auto_s / fixed_s:.3f} of it")
    return 0


def _told(row: pd.Series) -> str:
    low, high = row.speedup_ratio_low95, row.speedup_ratio_high95
    return f"{row.verdict} ({row.runs} runs, {row.speedup_ratio:.3f}x, {low:.3f}-{high:.3f})"


if __name__ == "__main__":
    raise SystemExit(main())
