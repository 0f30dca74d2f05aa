"""Whether a try may go on from the checkpoint of an earlier one. Torch-free."""

from __future__ import annotations

from pathlib import Path

from scalewise.data_identity import changes, data_identity
from scalewise.records import CellFolder, Provenance, RecordError
from scalewise.records.checkpoints import Checkpoint, has_checkpoints, last_checkpoint
from scalewise.sweep.job import Job
from scalewise.working_tree import code_changes, own_classes, running_code

_UNREADABLE = "its checkpoint is torn, or of another version of scalewise"


def prepare(folder: CellFolder, job: Job) -> str | None:
    """Leave in ``folder`` only a checkpoint that this try may go on from.

    Returns why there is none although one was there: results of two states of the code, or of two
    kinds of device, are never mixed silently, and the states of N ranks fit N ranks.
    """
    if not has_checkpoints(folder.path):
        return None
    found = last_checkpoint(folder.path)
    why = _UNREADABLE if found is None else _unfit(found[1], folder, job)
    if why is None:
        return None
    return f"{why}; it now lies in {folder.move_to_earlier(['checkpoints'])}"


def _unfit(checkpoint: Checkpoint, folder: CellFolder, job: Job) -> str | None:
    if checkpoint.world_size != job.world_size:
        return f"its checkpoint is of {checkpoint.world_size} ranks, this try has {job.world_size}"
    models = tuple(sorted({slot.name for slot in job.slots}))
    if not set(checkpoint.devices) <= set(models):
        return f"its checkpoint is from {', '.join(checkpoint.devices)}, this is {models[0]}"
    if job.settings.allow_mixed:
        return None
    provenance = _provenance(folder)
    if provenance is not None:
        now = data_identity(job.settings.dataset_arguments, Path(job.cwd))
        for argument, words in changes(provenance.data, now).items():
            return f"its checkpoint is of other data: dataset.{argument}: {words}"
    code = running_code(Path(job.cwd), own_classes(folder.load_config()), job.python_path)
    differing = next(code_changes(checkpoint.code, code), None)
    if differing is not None:
        return f"its checkpoint is of other {differing} (sweep.allow_mixed=true uses any)"
    return None


def _provenance(folder: CellFolder) -> Provenance | None:
    """Of the try that left the checkpoint; None where it did not get so far as to record it."""
    try:
        return folder.load_provenance()
    except RecordError:
        return None
