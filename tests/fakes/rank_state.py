"""What a rank got from the way it was started, written down by the rank itself."""

import ctypes
import faulthandler
import gc
import hashlib
import json
import multiprocessing
import os
import random
import resource
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from lightning_utilities.core.rank_zero import rank_zero_only

_PR_GET_PDEATHSIG = 2


class WriteState(pl.Callback):
    """A ``fault`` that plants nothing: ``<folder>/rank<rank>.json`` says what the rank is like."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        path = self._folder / f"rank{trainer.global_rank}.json"
        path.write_text(json.dumps({"alike": _alike(), "own": _own()}))


def _alike() -> dict[str, Any]:
    """What a fork and a fresh process are to have in common."""
    death_signal = ctypes.c_int()
    ctypes.CDLL(None).prctl(_PR_GET_PDEATHSIG, ctypes.byref(death_signal), 0, 0, 0)
    limits = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    umask = os.umask(0o22)
    os.umask(umask)
    return {
        "threads": torch.__config__.parallel_info().splitlines(),
        "compile_threads": torch._inductor.config.compile_threads,
        "cores": sorted(os.sched_getaffinity(0)),
        "umask": umask,
        "niceness": os.nice(0),
        "cwd": str(Path.cwd()),
        "arguments": len(sys.argv),
        "paths": sys.path,
        "flags": str(sys.flags),
        "environment": {n: v for n, v in os.environ.items() if n not in _OWN_VARIABLES},
        "handlers": {s.name: _name(signal.getsignal(s)) for s in signal.valid_signals()
                     if isinstance(s, signal.Signals)},
        "signal_masks": [line for line in Path("/proc/self/status").read_text().splitlines()
                         if line.startswith(("SigBlk", "SigIgn", "SigCgt"))],
        "faulthandler": faulthandler.is_enabled(),
        "death_signal": death_signal.value,
        "streams": [Path(f"/proc/self/fd/{n}").readlink().name for n in range(3)],
        "buffering": [sys.stdout.line_buffering, sys.stderr.line_buffering, sys.stdout.encoding],
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in limits},
        "oom_score": Path("/proc/self/oom_score_adj").read_text(),
        "timer_slack": Path("/proc/self/timerslack_ns").read_text(),
        "gc": [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count() > 0],
        "loader_workers": multiprocessing.get_start_method(allow_none=True),
        "rank_zero": rank_zero_only.rank,
        "random": [
            _digest(random.getstate()),
            _digest(np.random.get_state()[1].tolist()),
            _digest(torch.random.get_rng_state().tolist()),
        ],
    }  # fmt: skip


_OWN_VARIABLES = (
    "MASTER_PORT", "SCALEWISE_INHERITED", "SCALEWISE_LISTENER", "SCALEWISE_STARTED",
    "SCALEWISE_NOT_FORKED", "SCALEWISE_SUPERVISOR_PID", "SCALEWISE_COMMAND",
    # readline sets these behind the back of the process that runs tests.
    "COLUMNS", "LINES",
)  # fmt: skip


def _own() -> dict[str, Any]:
    """What differs from run to run, or says how the rank was started."""
    mapped = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    kib = {line.split(":")[0]: int(line.split()[1]) for line in mapped}
    return {
        "started": os.environ.get("SCALEWISE_STARTED", "fresh"),
        "shared_dirty_mib": kib["Shared_Dirty"] / 1024, "rss_mib": kib["Rss"] / 1024,
        "hash": hash("seed"), "modules": sorted(sys.modules),
    }  # fmt: skip


def _name(handler: object) -> str:
    return str(handler).partition(" at 0x")[0]


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:12]
