"""Starts one process a device for an examination, watches them, and collects what they left."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from scalewise.measure.doctor_plan import ENV_DEVICE, ENV_PARENT, Plan, save_plan
from scalewise.rank_environment import ENV_LISTENER, listen, on_loopback, rendezvous, scrubbed
from scalewise.records import DeviceInfo, RecordError
from scalewise.records.doctor import RankMeasurements
from scalewise.records.files import load_json
from scalewise.validation import to_plain

_GRACE_S = 8.0
"""For the others to finish what they do alone, once a rank has failed."""
_POLL_S = 0.05
_PACKAGE_ROOT = str(Path(__file__).parents[2])
"""Where this very package lies: the ranks must not find another one."""
_LAST_LINES = 3


def run_ranks(
    plan: Plan, slots: Sequence[DeviceInfo], folder: Path, locks: tuple[int, ...] = ()
) -> tuple[tuple[RankMeasurements, ...], dict[str, str]]:
    """Measure on every slot at once. No process is left when this returns or raises.

    Returns what each rank recorded, and for a rank that did not end well the reason.
    """
    save_plan(folder, plan)
    ranks = [_Rank(folder, rank) for rank in range(len(slots))]
    try:
        with listen() as listener:
            port = listener.getsockname()[1]
            for rank, slot in zip(ranks, slots, strict=True):
                environment = _environment(slots, slot, rank.number, port)
                rank.start(environment, locks, listener if rank.number == 0 else None)
        _wait(ranks, plan.limit_s(len(slots)))
    finally:
        for rank in ranks:
            rank.end()
    problems = {f"rank {r.number}": problem for r in ranks if (problem := r.problem()) is not None}
    return tuple(rank.measured() for rank in ranks), problems


def _wait(ranks: Sequence[_Rank], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    failed = False
    while time.monotonic() < deadline and any(rank.exit_code() is None for rank in ranks):
        if not failed and any(rank.exit_code() not in (None, 0) for rank in ranks):
            failed = True
            deadline = min(deadline, time.monotonic() + _GRACE_S)
        time.sleep(_POLL_S)


def _environment(
    slots: Sequence[DeviceInfo], slot: DeviceInfo, rank: int, port: int
) -> dict[str, str]:
    threads = str(max(1, len(slot.cores)))
    return {
        **on_loopback(slot.kind == "cuda"),
        **scrubbed(os.environ),
        **rendezvous(rank, rank, len(slots), port),
        # Every rank sees all GPUs of the examination: rank r's is number r.
        "CUDA_VISIBLE_DEVICES": ",".join(s.uuid for s in slots if s.uuid is not None),
        "PYTHONPATH": os.pathsep.join(filter(None, (_PACKAGE_ROOT, os.environ.get("PYTHONPATH")))),
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        ENV_PARENT: str(os.getpid()),
        ENV_DEVICE: json.dumps(to_plain(slot)),
    }


class _Rank:
    def __init__(self, folder: Path, number: int) -> None:
        self.number = number
        self._folder = folder
        self._log = folder / f"rank{number}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._ended_by_us = False

    def start(
        self,
        environment: dict[str, str],
        inherited: tuple[int, ...],
        listener: socket.socket | None,
    ) -> None:
        """``listener``: what rank 0 accepts the others on."""
        if listener is not None:
            inherited += (listener.fileno(),)
            environment = {**environment, ENV_LISTENER: str(listener.fileno())}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "scalewise.measure.doctor_worker", str(self._folder)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=inherited,
            )

    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._ended_by_us = True
            self._process.kill()
            self._process.wait()

    def measured(self) -> RankMeasurements:
        """What it recorded, up to where it came."""
        try:
            return load_json(self._folder / f"rank{self.number}.json", RankMeasurements)
        except RecordError as error:
            return RankMeasurements(self.number, "start", missing={"record": str(error)})

    def problem(self) -> str | None:
        """Why it did not end well, in one line; None if it did."""
        code = self.exit_code()
        stage = self.measured().stage
        if self._ended_by_us:
            return f"was ended while at {stage!r}: it hung, or another rank had failed"
        if code == 0:
            return None
        text = self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""
        last = " | ".join(line.strip() for line in text.strip().splitlines()[-_LAST_LINES:])
        return f"ended with status {code} while at {stage!r}: {last or 'it said nothing'}"
