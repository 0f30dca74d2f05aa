"""Runs one rank of a cell: builds the parts, fits, validates, closes the records."""

from __future__ import annotations

import logging
import re
import shlex
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path, PosixPath
from pickle import UnpicklingError
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning.callbacks import Checkpoint, LambdaCallback
from pytorch_lightning.strategies import DDPStrategy, Strategy

from scalewise.config import CellConfig, ConfigError, explain, instantiate, of_validation, rehearsed
from scalewise.host import from_here
from scalewise.records import CellFolder, RankSummary
from scalewise.train.build import build_data, build_module, build_strategy, check_test, data_share
from scalewise.train.callbacks import CellTrainer, OwnFolder, can_score, note_unscored
from scalewise.train.execution import (
    Execution,
    ExperimentModule,
    ForwardSteps,
    NoProfiler,
    OperationModule,
    apply_precision,
    trim,
)
from scalewise.train.length import RunLength, raise_it
from scalewise.train.provenance import note_imported
from scalewise.train.rank import RankContext, join, settle_device
from scalewise.train.recording import CellRecorder, leave_out


def run(
    cell: CellConfig,
    folder: CellFolder,
    rank: RankContext,
    give_up: Callable[[BaseException], None] = raise_it,
) -> RankSummary:
    """Train this rank's replica and write its records to ``folder``.

    ``give_up`` ends this process with an error of the recording thread, while the training thread
    may wait for ever.
    """
    _silence_warnings()
    pl.seed_everything(cell.seed, workers=True, verbose=False)
    apply_precision(cell.precision)
    settle_device(rank, cell.hardware.memory_cap_gib, cell.execution.device_check)
    alone, rehearsal = rank, rehearsed(cell)
    if rehearsal is not None:
        # Among ranks that are not there, each on a host: Lightning looks for the devices of one.
        rank = replace(rank, world_size=rehearsal.ranks, hosts=rehearsal.ranks)
    module = build_module(cell)
    execution = Execution(cell, rank)
    execution.change(module)
    check_test(cell, module)
    data = build_data(cell, rank, module, execution.steps_per_batch)
    testing = data.pop("test_dataloaders", None)
    early, share = execution.untimed_steps, data_share(cell, rank)
    recorder = CellRecorder(folder, rank.device, early, cell.log_every_n_steps, share, cell.profile)
    recorder.brings_optimizer = not isinstance(module, ExperimentModule | OperationModule)
    trainer = build_trainer(cell, rank, recorder, module, data)
    execution.attach(trainer, recorder)
    if cell.ends_by_time:
        # Steps of one batch begin together; replicas that seldom meet run ahead of one another.
        apart = execution.steps_per_batch + getattr(cell.strategy, "period", 1)
        RunLength(cell.measure.min_time_s, alone, recorder, apart, give_up).attach(trainer)
    if cell.ckpt_path is not None:
        torch.serialization.add_safe_globals(PLAIN)
    if rank.world_size > 1:
        # Replicas start with rank 0's weights (DDP copies them) but need their own dropout masks;
        # ranks that share one replica need the same masks.
        torch.manual_seed(cell.seed + cell.strategy.data_shard(rank.rank, rank.world_size))
    if alone.describes_host:
        note_imported(folder)
    with explained(cell, module, recorder), execution.stream():
        joined = _join_process_group(trainer.strategy, cell, rank)
        trainer.fit(module, **data, ckpt_path=cell.ckpt_path)
    if recorder.steps.steps == 0 and cell.ckpt_path is not None:
        raise ConfigError(
            f"ckpt_path: found {cell.ckpt_path}, saved after step {trainer.global_step} and epoch "
            f"{trainer.current_epoch}, where this run ends; allowed: more max_steps or max_epochs"
        )
    if recorder.steps.steps == 0:
        raise ConfigError(
            f"dataset: no batch came from {cell.dataset.name}, so nothing was trained; allowed: "
            "one batch or more for every rank (has it fewer samples than one batch, and drop_last?)"
        )
    source, limit = data.get("datamodule"), cell.trainer.get("limit_val_batches", 1.0)
    if cell.validation == "end" and limit:
        if can_score(trainer):
            trainer.limit_val_batches, own = limit, data.get("val_dataloaders")
            with explained(cell, module, recorder):
                trainer.validate(module, own, datamodule=source, verbose=False)
        note_unscored(trainer, recorder, cell.data_source.target)
    if cell.test:
        best = getattr(trainer.checkpoint_callback, "best_model_path", "") or None
        own_file: dict[str, Any] = {"ckpt_path": best, "weights_only": False} if best else {}
        with explained(cell, module, recorder):
            trainer.test(module, testing, datamodule=source, verbose=False, **own_file)
    summary = recorder.close(trainer, module)
    if rehearsal is not None:
        refuse_untrained(summary)
    if alone.describes_host:
        note_imported(folder)
    # NCCL hangs if it is destroyed under captured graphs; the end of the process destroys it.
    if joined and cell.execution.kind != "cudagraph" and rank is alone:
        torch.distributed.destroy_process_group()
    return summary


@contextmanager
def explained(cell: CellConfig, module: Any, recorder: CellRecorder) -> Iterator[None]:
    """Raises :class:`ConfigError` for an error of which is known what to change."""
    try:
        yield
    except (AttributeError, RuntimeError, TypeError, MisconfigurationException) as error:
        if why := explain(error):
            raise ConfigError(why) from error
        if _UNUSED in str(error):
            raise ConfigError(_unused_parameters(module, recorder.folder.path.parent)) from error
        if why := why_not_logged(error, cell, recorder.steps.missing):
            raise ConfigError(f"{str(error).rstrip('. ')}: {why}") from error
        raise
    except UnpicklingError as error:
        if cell.ckpt_path is None:
            raise
        raise refusal(error, cell.ckpt_path) from error


def refuse_untrained(rank: RankSummary) -> None:
    """Raises :class:`ConfigError` for a rehearsal whose rank did not train in every step.

    There are no other ranks whose steps it could be held against.
    """
    found = ""
    if rank.steps_without_loss:
        found = f"{rank.steps_without_loss} of {rank.steps_completed} steps without a loss"
    elif rank.metrics.get("train_loss", 0.0) is None:
        found = "a train_loss that is not finite"
    if found:
        raise ConfigError(f"rehearse: found {found}; allowed: a finite loss in every step")


PLAIN: list[Any] = [dict, int, list, defaultdict, PosixPath]
"""Classes of hyper-parameters allowed beside torch's own: to load them runs no code."""


def refusal(error: UnpicklingError, path: str) -> ConfigError:
    """What a user reads where torch refuses the content of a checkpoint."""
    lines = str(error).partition("Check the documentation")[0].strip().splitlines()
    said = lines[-1].strip() if lines else "torch refuses to load it"
    why = said.partition(". Please use")[0]  # ways around it that nobody has here
    return ConfigError(
        f"ckpt_path: found {path}, and {why}; to load such a checkpoint can be to run code; "
        "allowed: hyper-parameters of plain values, or TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1 before "
        "the command"
    )


_UNUSED = "not used in producing the loss"
"""In Lightning's words for DDP's complaint. Its advice names settings that a cell does not have."""
_NOT_LOGGED = re.compile(r"conditioned on metric `?([^\s`]+)")
"""In Lightning's words for what stops or schedules by a metric that did not come."""


def why_not_logged(error: Exception, cell: CellConfig, missing: Mapping[str, str]) -> str:
    """Why a metric did not come that Lightning's ``error`` waited for; empty if nothing tells."""
    absent = _NOT_LOGGED.search(str(error))
    if absent and absent[1].startswith("train"):
        return "it was not there by then; allowed: a metric that is logged by then"
    if absent is None or not (cell.unscored() or of_validation(absent[1])):
        return ""
    early = "no validation logged it by then; allowed: a metric that is logged, or max_epochs=1"
    return cell.unscored() or missing.get("validation", early)


def _unused_parameters(module: pl.LightningModule, sweep: Path) -> str:
    trained = [(name, one) for name, one in module.named_parameters() if one.requires_grad]
    without = [name for name, one in trained if one.grad is None]
    named = f" ({', '.join(without[:3])}{', ...' * (len(without) > 3)})"
    return (
        "strategy.find_unused_parameters: found false, and the loss does not depend on some "
        f"parameters{named if 0 < len(without) < len(trained) else ''}; allowed: a model "
        "without them, or true (each step looks for them): scalewise resume "
        f"{shlex.quote(from_here(sweep))} strategy.find_unused_parameters=true"
    )


def _join_process_group(strategy: Strategy, cell: CellConfig, rank: RankContext) -> bool:
    """Make the process group before Lightning does, on an address no other host can reach.

    Returns False if there is none to make.
    """
    if not isinstance(strategy, DDPStrategy) or torch.distributed.is_initialized():
        return False
    rehearsal = rehearsed(cell)
    if rehearsal is not None:
        from scalewise.train.rehearsal import join_alone

        join_alone(rehearsal.ranks, rehearsal.link, strategy.root_device)
        return True
    assert strategy.process_group_backend is not None, "every strategy of ours names it"
    timeout = timedelta(seconds=cell.sweep.collective_timeout_s)
    device = None if strategy.root_device.type == "cpu" else strategy.root_device
    join(rank.rank, rank.world_size, strategy.process_group_backend, timeout, device)
    return True


def build_trainer(
    cell: CellConfig,
    rank: RankContext,
    recorder: CellRecorder,
    module: pl.LightningModule,
    data: dict[str, Any],
) -> pl.Trainer:
    """Build a Trainer that does only what the cell's configuration says."""
    own_data = "datamodule" not in data
    last_step = cell.profile.last_step(
        cell.max_steps, recorder.steps.warmup_steps, cell.strategy.kind == "ddp"
    )
    strategy = build_strategy(cell, rank, module)
    if (rehearsal := rehearsed(cell)) is not None:
        strategy.ends_alike, strategy.rehearsal_record = False, rehearsal.record
    callbacks: list[pl.Callback] = [recorder]
    if not own_data:  # built-in loaders have a batch in every epoch; a user's may not
        callbacks.append(LambdaCallback(on_train_epoch_end=refuse_empty_epoch))
    if cell.fault is not None:
        callbacks.append(instantiate("fault", cell.fault))
    own = [instantiate(f"callbacks.{name}", one) for name, one in cell.callbacks.items()]
    leave_out(own, own, recorder.steps.missing)  # a Trainer refuses bars that it is not to draw
    keeps_inside = OwnFolder(recorder, {id(one) for one in callbacks}, cell)
    passed = {
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        # Built-in samplers shard the data; a user's LightningDataModule gets Lightning's.
        "use_distributed_sampler": not own_data,
        **cell.trainer,
    }
    if cell.validation != "epoch":
        # None before the end: callbacks then look at the end of an epoch, as Lightning's do.
        passed["limit_val_batches"] = 0
    trainer = CellTrainer(
        accelerator="gpu" if rank.device.kind == "cuda" else "cpu",
        devices=rank.world_size // rank.hosts,
        num_nodes=rank.hosts,
        strategy=strategy,
        # Explicit: Lightning would otherwise use the environment of a surrounding cluster job.
        plugins=[LightningEnvironment()],
        precision=cell.precision.lightning,
        max_steps=-1 if last_step is None else last_step,
        max_epochs=-1 if cell.max_epochs is None else cell.max_epochs,
        gradient_clip_val=cell.gradient_clip_norm,
        accumulate_grad_batches=cell.accumulate_grad_batches,
        deterministic=cell.deterministic,
        # cuDNN's search may change results from run to run, so it is off by default.
        benchmark=cell.execution.cudnn_benchmark,
        callbacks=[*callbacks, keeps_inside, *own],
        default_root_dir=recorder.folder.callbacks_path,
        profiler=NoProfiler(),
        logger=False,
        enable_checkpointing=any(isinstance(one, Checkpoint) for one in own),
        enable_progress_bar=False,
        **passed,
    )
    leave_signals_alone(trainer)
    if isinstance(module, OperationModule):
        trim(trainer, recorder, ForwardSteps, own_data=own_data)
    elif isinstance(module, ExperimentModule):
        scheduled = cell.scheduler is not None
        trim(trainer, recorder, callbacks=own, scheduled=scheduled, own_data=own_data)
    return trainer


def leave_signals_alone(trainer: Any) -> None:
    """Keep Lightning from handling signals.

    SIGTERM ends a rank at once. Lightning's handler broadcasts it, and where others reduce
    gradients meanwhile, all ranks wait for one another. After each fit it puts back the handlers
    that Python knows; faulthandler's is none: the next request for stacks would kill the rank.
    """
    trainer._signal_connector.register_signal_handlers = lambda: None


def refuse_empty_epoch(trainer: pl.Trainer, module: pl.LightningModule) -> None:
    """Raises :class:`ConfigError` where an epoch had no batch.

    Lightning goes on to the next epoch instead, for ever if epochs have no limit. A generator can
    be read only once, and a stream may be empty from the start.
    """
    if not trainer.fit_loop.epoch_loop.batch_progress.current.ready:
        raise ConfigError(
            f"dataset: no batch came in epoch {trainer.current_epoch + 1}, after "
            f"{trainer.global_step} steps; allowed: a loader that gives batches whenever it is "
            "iterated (a generator does so once), or no more epochs than it has (max_epochs)"
        )


def _silence_warnings() -> None:
    for name in ("pytorch_lightning", "lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in (
        r".*does not have many workers.*",
        r".*`srun` command is available on your system but is not used.*",
        r".*defined a `validation_step` but have no `val_dataloader`.*",
        r".*The number of training batches .* is smaller than the logging interval.*",
        r".*`isinstance\(treespec, LeafSpec\)` is deprecated.*",
        r".*`configure_optimizers` returned `None`.*",
    ):
        warnings.filterwarnings("ignore", message=message)
