"""The arms of ``benchmarks/execution.py``: one run of each, and its step time."""

from __future__ import annotations

import gc
import itertools
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from scalewise.config import CellConfig, build_cell
from scalewise.host.identity import code_version
from scalewise.records import CellFolder, DeviceInfo, read_steps
from scalewise.train import RankContext, build, experiment
from scalewise.train.execution import apply_precision
from scalewise.train.monitor import live_device
from scalewise.train.provenance import package_versions

Batch = tuple[Tensor, Tensor]
WARMUP = 40
REPLAY_FACTOR = 8
"""Replayed steps are short: so many times more of them, warm-up too, for a run as long."""


def provenance() -> dict[str, Any]:
    """What the figures depend on beside the command."""
    return {
        "device": torch.cuda.get_device_name(),
        "packages": package_versions(),
        "code": code_version(Path(__file__).parent),
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        "time": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
    }


class Bench:
    """Runs arms on this process's GPU, one after the other."""

    def __init__(self, devices: int) -> None:
        import os

        local = int(os.environ.get("LOCAL_RANK", "0"))
        torch.cuda.set_device(local)
        self.devices = devices
        info: DeviceInfo = live_device(torch.device("cuda", local))
        self.rank = RankContext(int(os.environ.get("RANK", "0")), local, devices, info)
        if devices > 1:
            torch.distributed.init_process_group("nccl", device_id=torch.device("cuda", local))
        for message in (".*isinstance.treespec.*", ".*process group.*", ".*num_workers.*"):
            warnings.filterwarnings("ignore", message=message)

    def any_rank(self, flag: bool) -> bool:
        """Whether any rank says so: all must agree on what to run next."""
        if self.devices == 1:
            return flag
        flags: list[bool] = [False] * self.devices
        torch.distributed.all_gather_object(flags, flag)
        return any(flags)

    def run(
        self, overrides: tuple[str, ...], source: str, arm: str, steps: int, steps_per_batch: int
    ) -> dict[str, Any]:
        """One run: its step time in ms and its last loss."""
        execution = "eager" if arm in ("bare", "hand", "lightning") else arm
        factor = REPLAY_FACTOR if arm == "hand" or execution.startswith("cudagraph") else 1
        steps, warmup = steps * factor, WARMUP * factor
        overrides = (
            *overrides, f"execution={execution}", "tracking=none", "validation=never",
            f"max_steps={steps + warmup}", f"warmup_steps={warmup}",
            f"strategy={'single' if self.devices == 1 else 'ddp'}",
            # As the study has it: what is said of a batch is said of each GPU.
            "scaling=weak", f"dataset.loader.device_resident={source == 'device'}",
        )  # fmt: skip
        if execution.startswith("cudagraph"):
            overrides = (*overrides, f"execution.steps_per_batch={steps_per_batch}")
        cell = compose(overrides)
        # No arm is to pay for collecting what the arms before it have left.
        gc.collect()
        gc.freeze()
        if self.devices > 1:
            torch.distributed.barrier()
        try:
            by_hand = {"bare": self._bare, "hand": self._hand, "lightning": self._lightning}
            return by_hand.get(arm, self._cell)(cell)
        finally:
            gc.unfreeze()
            gc.collect()
            torch.cuda.empty_cache()

    def _cell(self, cell: CellConfig) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as scratch:
            folder = CellFolder(Path(scratch))
            summary = experiment.run(cell, folder, self.rank)
            timed = read_steps(folder.steps_path(self.rank.rank), self.rank.rank).timed()
            # All of the time between the first and the last timed step, whoever took it.
            total = float(timed.column("step", "device").sum())
            executed = summary.execution
            assert executed is not None
            return {
                "step_time_ms": total / len(timed),
                "loss": summary.metrics.get("train_loss"),
                "ran": executed.ran,
                "because": executed.fell_back_because,
                "prepare_s": executed.prepare_s,
            }

    # By hand

    def _parts(self, cell: CellConfig) -> tuple[Any, Any, Iterator[Batch]]:
        """Model (under DDP where there are several GPUs), optimizer, and endless batches."""
        pl.seed_everything(cell.seed, verbose=False)
        apply_precision(cell.precision)
        module = build.build_module(cell, self.rank)
        loader = self._loader(cell, module)
        device = torch.device("cuda", self.rank.local_rank)
        module.to(device).train()
        optimizer = module.configure_optimizers()
        autocast = torch.bfloat16 if cell.precision.lightning == "bf16-mixed" else None
        network: Any = Objective(module, autocast)
        if self.devices > 1:
            network = DistributedDataParallel(
                network, device_ids=[device.index], gradient_as_bucket_view=True
            )
        batches = staged(loader, device) if cell.loader.device_resident else endless(loader)
        return network, optimizer, batches

    def _loader(self, cell: CellConfig, module: Any) -> Any:
        share = build.data_share(cell, self.rank)
        return build.build_data(cell, self.rank, module, share)["train_dataloaders"]

    def _bare(self, cell: CellConfig) -> dict[str, Any]:
        network, optimizer, batches = self._parts(cell)
        device = torch.device("cuda", self.rank.local_rank)

        def step(batch: Batch) -> Tensor:
            x, target = (part.to(device, non_blocking=True) for part in batch)
            loss: Tensor = network(x, target)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            return loss

        return timed_loop(cell, step, batches)

    def _hand(self, cell: CellConfig) -> dict[str, Any]:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*capturable=True.*")
            network, optimizer, batches = self._parts(cell)
            for group in optimizer.param_groups:
                group["capturable"] = True
            device = torch.device("cuda", self.rank.local_rank)
            inputs = tuple(part.to(device).clone() for part in next(batches))

            def captured() -> Tensor:
                loss: Tensor = network(*inputs)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                return loss

            for _ in range(11):
                captured()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                loss = captured()

            def step(batch: Batch) -> Tensor:
                for own, part in zip(inputs, batch, strict=True):
                    own.copy_(part, non_blocking=True)
                graph.replay()
                return loss

            result = timed_loop(cell, step, batches)
            graph.reset()
        return result

    def _lightning(self, cell: CellConfig) -> dict[str, Any]:
        pl.seed_everything(cell.seed, verbose=False)
        apply_precision(cell.precision)
        module = build.build_module(cell, self.rank)
        loader: Any = self._loader(cell, module)
        if cell.loader.device_resident:
            device = torch.device("cuda", self.rank.local_rank)
            loader = Endless(list(itertools.islice(staged(loader, device), 64)))
        watch = Watch(cell)
        trainer = pl.Trainer(
            accelerator="gpu", devices=self.devices, max_steps=cell.max_steps or -1,
            strategy="auto" if self.devices == 1 else "ddp", plugins=[LightningEnvironment()],
            precision=cell.precision.lightning, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, callbacks=[watch],
            use_distributed_sampler=False, limit_val_batches=0,
        )  # fmt: skip
        trainer.fit(module, loader)
        return {"step_time_ms": watch.ms(), "loss": None}


class Objective(torch.nn.Module):
    """Network and loss as one module, so that DDP sees both."""

    def __init__(self, module: Any, autocast: torch.dtype | None) -> None:
        super().__init__()
        self.network = module.network
        self.autocast = autocast

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        with torch.autocast("cuda", self.autocast, enabled=self.autocast is not None):
            loss: Tensor = self.network.loss(self.network(x), target)
        return loss


class Watch(pl.Callback):
    """Device time between the end of warm-up and the last step."""

    def __init__(self, cell: CellConfig) -> None:
        assert cell.max_steps is not None
        self.first, self.last = cell.warmup_steps, cell.max_steps
        self.events: list[Any] = []

    def on_train_batch_end(self, trainer: pl.Trainer, *rest: Any) -> None:
        if trainer.global_step in (self.first, self.last):
            self.mark()

    def mark(self) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self.events.append(event)

    def ms(self) -> float:
        begin, end = self.events
        end.synchronize()
        return float(begin.elapsed_time(end)) / (self.last - self.first)


class Endless(torch.utils.data.IterableDataset[Any]):
    """Batches that exist already, again and again; also its own loader."""

    def __init__(self, batches: list[Batch]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Batch]:
        return itertools.cycle(self.batches)


def timed_loop(
    cell: CellConfig, step: Callable[[Batch], Tensor], batches: Iterator[Batch]
) -> dict[str, Any]:
    """``max_steps`` steps, of which the first are not timed."""
    watch = Watch(cell)
    for number in range(watch.last):
        if number == watch.first:
            watch.mark()
        loss = step(next(batches))
    watch.mark()
    return {"step_time_ms": watch.ms(), "loss": float(loss.detach())}


def endless(loader: Any) -> Iterator[Batch]:
    """Epoch after epoch of a loader."""
    for epoch in itertools.count():
        loader.batch_sampler.set_epoch(epoch)
        yield from loader


def staged(loader: Any, device: torch.device) -> Iterator[Batch]:
    """The same, with every batch of one epoch put on the device beforehand."""
    batches = [(x.to(device), y.to(device)) for x, y in loader]
    torch.cuda.synchronize()
    return itertools.cycle(batches)


def compose(overrides: tuple[str, ...]) -> CellConfig:
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from omegaconf import OmegaConf

    from scalewise.config import conf_dir, resolve
    from scalewise.sweep import sweep_folder

    OmegaConf.register_new_resolver("scalewise_folder", sweep_folder, replace=True)
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return build_cell(resolve(hydra_compose("config", overrides=list(overrides))))
