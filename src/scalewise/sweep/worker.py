"""The program of one rank: load the saved configuration, train, record. No Hydra here.

    python -m scalewise.sweep.worker <cell folder>

The first lines run before torch is imported, because threads and cores are decided on import.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path

from scalewise.config import cause_of, ending_of
from scalewise.host import (
    ENV_INHERITED,
    ENV_STARTED,
    ENV_SUPERVISOR,
    ENV_WRAPPED,
    STACKS_SIGNAL,
    die_with_parent,
    exit_now,
    keep_from_children,
    own_memory,
    usable_cores,
)
from scalewise.records import CellFolder, DeviceInfo, build, with_secrets, without_secrets
from scalewise.train import import_training, is_ours


def main() -> int:
    # Under a profiler the parent is the profiler, which itself ends with the supervisor.
    is_wrapped = os.environ.get(ENV_WRAPPED) == "1"
    die_with_parent(os.getppid() if is_wrapped else int(os.environ[ENV_SUPERVISOR]))
    if not is_wrapped:  # a profiler may have closed them, and opened others under their numbers
        keep_from_children([int(one) for one in os.environ[ENV_INHERITED].split(",") if one])
    faulthandler.enable()
    faulthandler.register(STACKS_SIGNAL)  # writes the stacks of all threads, whatever call hangs
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the sweep's to handle
    folder = CellFolder(Path(sys.argv[1]))
    rank = int(os.environ["RANK"])
    device = build(DeviceInfo, json.loads(os.environ["SCALEWISE_DEVICE"]))
    host_cores = len(usable_cores())  # before this rank is bound to its share of them
    if device.cores:
        os.sched_setaffinity(0, device.cores)
    if os.environ.get(ENV_STARTED) == "forked":
        own_memory()
    try:
        _train(folder, rank, device, host_cores)
    except BaseException as error:
        return _report(folder, rank, error)
    return 0


def _train(folder: CellFolder, rank: int, device: DeviceInfo, host_cores: int) -> None:
    plain = with_secrets(folder.load_config())
    import_training(lean=is_ours(plain))
    import torch

    from scalewise.config import build_cell, own_classes
    from scalewise.host import data_identity
    from scalewise.train import RankContext, collect_started, run

    if device.kind == "cpu" and device.cores:
        torch.set_num_threads(len(device.cores))
    cell = build_cell(plain)
    world_size = int(os.environ["WORLD_SIZE"])
    local_rank, hosts = int(os.environ["LOCAL_RANK"]), int(os.environ["SCALEWISE_HOSTS"])
    context = RankContext(rank, local_rank, world_size, device, hosts)
    if context.describes_host:
        data, classes = data_identity(cell.dataset.arguments), own_classes(plain)
        folder.save_provenance(collect_started(os.environ, host_cores, data, classes))
    run(cell, folder, context, lambda error: os._exit(_report(folder, rank, error)))


def _report(folder: CellFolder, rank: int, error: BaseException) -> int:
    """Record what this rank dies of, at once: the supervisor blames the earliest."""
    when = time.time()
    error = cause_of(error)
    text = "".join(traceback.format_exception(error))
    try:
        folder.save_rank_error(replace(ending_of(error, rank), finished_at=when))
    except OSError as failure:
        text += f"the reason could not be recorded: {failure}\n"
    # Past the buffer of sys.stderr: on a full disk the log takes as much as there is room for,
    # and then only the exit status speaks.
    with contextlib.suppress(OSError):
        os.write(2, without_secrets(text).encode(errors="replace"))
    return 1


if __name__ == "__main__":
    exit_now(main())  # after a failure, tearing down a process group whose peers are gone can hang
