"""Takes the place of a rank with the first optimizer step of a script, and watches it from there.

What is patched is torch's own: optimizer steps by its global hooks, ``torch.autograd.backward``,
which ``Tensor.backward`` calls, and the iterator of its DataLoader.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data import dataloader

from scalewise.config import ConfigError, build_cell, ending_of, rehearsed
from scalewise.host import data_identity
from scalewise.records import CellFolder, DeviceInfo, build
from scalewise.script.place import Task, take_place
from scalewise.script.recorder import RunEnds, ScriptRecorder, first_parameter
from scalewise.train import collect_started, leave_out_of_graphs, note_imported


def begin(optimizer: torch.optim.Optimizer, *, in_child: bool) -> None:
    """Record this process from now on, if it is the first of its rank that trains.

    Raises :class:`RunEnds` with status 1 where it is ``in_child`` of a script: a fork of it, or
    started by ``multiprocessing``.
    """
    place = take_place(os.environ, in_child=in_child)
    if place is None:
        return
    folder = CellFolder(Path(place.folder))
    cell = build_cell(folder.load_config())
    assert cell.script is not None
    if in_child:
        error = ConfigError(
            f"{cell.model.name}: found training in a process that the script itself started "
            "(torch.multiprocessing, os.fork); allowed: a script that torchrun starts, once a rank"
        )
        folder.save_rank_error(ending_of(error, place.rank))
        raise RunEnds(1)
    devices = build(tuple[DeviceInfo, ...], json.loads(os.environ["SCALEWISE_DEVICES"]))
    one = rehearsed(cell)
    task = Task(
        cell.model.name,
        cell.warmup_steps,
        cell.max_steps,
        cell.ends_by_time,
        cell.measure.min_time_s,
        cell.log_every_n_steps,
        None if one is None else one.record,
    )
    trained_on = first_parameter(optimizer).device
    slot = trained_on.index if trained_on.type == "cuda" else None
    recorder = ScriptRecorder(place, task, devices[place.local_rank if slot is None else slot])
    if recorder.rank.describes_host:
        files = data_identity({"script": cell.script.file or ""}, Path(place.cwd))
        folder.save_provenance(collect_started(os.environ, place.cores, files, cwd=Path(place.cwd)))
        note_imported(folder)
        recorder.note_late = functools.partial(note_imported, folder)
    recorder.begin(optimizer)
    watch(recorder)
    _await_the_end(recorder)


def join_rehearsal(folder: str, rank: int, world_size: int) -> None:
    """Make the group of a rehearsal, as rank 0 of those that torchrun's variables name.

    Args:
        folder: the cell's.
        rank: which the script asks for; -1 where it leaves that to these.
        world_size: likewise.
    """
    from scalewise.train import join_alone  # few ranks of a script rehearse

    rehearsal = rehearsed(build_cell(CellFolder(Path(folder)).load_config()))
    assert rehearsal is not None
    if rank not in (-1, 0) or world_size not in (-1, rehearsal.ranks):
        raise ConfigError(
            f"init_process_group: found rank {rank} of {world_size}; allowed under --rehearse: "
            f"rank 0 of {rehearsal.ranks}, as torchrun's variables say"
        )
    is_gpu = json.loads(os.environ["SCALEWISE_DEVICE"])["kind"] == "cuda"
    join_alone(rehearsal.ranks, rehearsal.link, torch.device(*["cuda", 0] if is_gpu else ["cpu"]))


def active() -> ScriptRecorder | None:
    """Who watches this process."""
    return watching[-1] if watching else None


watching: list[ScriptRecorder] = []


def watch(recorder: ScriptRecorder) -> contextlib.ExitStack:
    """Tell ``recorder`` what the script does, until the stack is closed."""
    # Also where a function holds the whole step: what it calls of ours runs as it is.
    leave_out_of_graphs("scalewise")
    undo = contextlib.ExitStack()
    undo.callback(register_optimizer_step_pre_hook(recorder.moments.begin_optimizer).remove)
    undo.callback(register_optimizer_step_post_hook(recorder.moments.end_optimizer).remove)
    undo.callback(recorder.models.leave)
    undo.callback(recorder.steps.gradients.leave)
    _watch_backward(recorder, undo)
    _watch_loaders(recorder, undo)
    watching.append(recorder)
    undo.callback(watching.remove, recorder)
    return undo


def _await_the_end(recorder: ScriptRecorder) -> None:
    pid, before = os.getpid(), sys.excepthook

    def here() -> bool:
        return os.getpid() == pid  # not in a fork of it

    def on_error(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        before(kind, error, trace)
        if here() and recorder.is_at_end:  # it waited for a rank that has ended
            recorder.finish()
            os._exit(0)
        if here():
            recorder.fail(error)

    sys.excepthook = on_error
    atexit.register(lambda: recorder.finish() if here() else None)


def _watch_backward(recorder: ScriptRecorder, undo: contextlib.ExitStack) -> None:
    inner, moments, losses = torch.autograd.backward, recorder.moments, recorder.losses

    @functools.wraps(inner)
    def backward(*args: Any, **kwargs: Any) -> Any:
        losses.begin_backward(args[0] if args else kwargs.get("tensors"))
        moments.begin_backward()
        try:
            return inner(*args, **kwargs)
        finally:
            moments.end_backward()

    is_in_place = False

    def look(looks: bool) -> None:
        nonlocal is_in_place
        before, after = (inner, backward) if looks else (backward, inner)
        if torch.autograd.backward is before:
            torch.autograd.backward, is_in_place = after, looks
        elif looks and not is_in_place:  # another one patched torch's; if ours, it calls that
            why = "something else took its place in torch.autograd amid training; its loss is too"
            recorder.note("backward", why)

    look(True)
    recorder.look_at_backward = look
    undo.callback(setattr, torch.autograd, "backward", inner)
    scaler: Any = torch.amp.GradScaler
    multiply = scaler.scale

    @functools.wraps(multiply)
    def scale(self: Any, outputs: Any) -> Any:
        scaled = multiply(self, outputs)
        losses.scale(outputs, scaled)
        return scaled

    scaler.scale = scale
    undo.callback(setattr, scaler, "scale", multiply)


def _watch_loaders(recorder: ScriptRecorder, undo: contextlib.ExitStack) -> None:
    iterator: Any = dataloader._BaseDataLoaderIter
    inner = iterator.__next__

    @functools.wraps(inner)
    def fetch(self: Any) -> Any:
        return recorder.fetch(inner, self)

    iterator.__next__ = fetch
    undo.callback(setattr, iterator, "__next__", inner)
