"""From the config group ``execution`` to the parts of one rank that it changes."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Iterator
from typing import Any

import pytorch_lightning as pl
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from scalewise.config import CellConfig, PrecisionConfig, refuse_as
from scalewise.records import ExecutionRecord
from scalewise.train.execution.module import ExperimentModule, KeywordModule
from scalewise.train.execution.replay import ReplayedSteps
from scalewise.train.rank import RankContext
from scalewise.train.recording import CellRecorder, on_stream
from scalewise.train.torch_internals import compiled_graphs, graph_breaks


class Execution:
    """How the steps of one rank run. Its methods are called in their order, once each."""

    def __init__(self, cell: CellConfig, rank: RankContext) -> None:
        self._cell = cell
        self._rank = rank
        self._config = cell.execution
        self._obstacle: str | None = None
        self._compiles = False
        self._replayed: ReplayedSteps | None = None
        self._details: dict[str, Any] = {}

    def change(self, module: pl.LightningModule) -> None:
        """Change the module before a Trainer sees it. Raises ConfigError."""
        if self._config.activation_checkpointing:
            network = getattr(module, "network", module)
            with refuse_as():
                self._details["checkpointed_blocks"] = checkpoint_blocks(network)
        if self._config.kind == "cudagraph":
            self._obstacle = self._known_obstacle(module)
        self._compiles = self._config.compiles and self._obstacle is None
        if self._compiles:
            # The objective of a module of ours, the whole step of a user's own.
            name = "objective" if hasattr(module, "objective") else "training_step"
            mode = self._config.compile_mode
            compiled = torch.compile(getattr(module, name), mode=mode, dynamic=False)
            object.__setattr__(module, name, compiled)
            self._details["compile_mode"] = mode

    @property
    def steps_per_batch(self) -> int:
        """Steps whose samples a batch of the training loader holds."""
        return 1 if self._obstacle is not None else self._config.steps_per_batch

    @property
    def untimed_steps(self) -> int:
        """First steps that are excluded from every timing."""
        return max(self._cell.warmup_steps, self._config.preparing_steps(self._rank.world_size))

    def attach(self, trainer: pl.Trainer, recorder: CellRecorder) -> None:
        """Replace the Trainer's steps by replayed ones where they can be."""
        recorder.execution = self.record
        if self._config.kind != "cudagraph":
            return
        if self._obstacle is not None:
            if self._rank.is_first:
                pl.utilities.rank_zero_warn(
                    f"execution={self._config.name}: the steps run eagerly, because "
                    f"{self._obstacle}"
                )
            return
        recorder.steps.watches_gradients = False
        eager_steps = self._config.eager_steps(self._rank.world_size)
        steps = ReplayedSteps(trainer, recorder, self.steps_per_batch, eager_steps)
        loop: Any = trainer.fit_loop.epoch_loop
        loop.automatic_optimization = self._replayed = steps
        loop.advance = steps.advance

    @contextlib.contextmanager
    def stream(self) -> Iterator[None]:
        """Train in here: a capture needs a stream other than the default one.

        Python's garbage collector would walk through all that was imported and built, which takes
        20 to 250 ms and comes at any step; what training itself leaves is still collected.
        """
        stream: torch.cuda.Stream | None = None
        if self._config.kind == "cudagraph" and self._rank.device.kind == "cuda":
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
        gc.collect()
        gc.freeze()
        with contextlib.nullcontext() if stream is None else on_stream(stream):
            yield
        if stream is not None:
            torch.cuda.current_stream().wait_stream(stream)

    def record(self) -> ExecutionRecord:
        """How the steps were really executed; asked when training is over."""
        config, replayed = self._config, self._replayed
        if self._compiles and replayed is None:
            return ExecutionRecord(
                config.kind, config.kind, None, self.untimed_steps, 1,
                compiled_graphs(), graph_breaks(), self._details,
            )  # fmt: skip
        if replayed is None:
            ran = "eager" if config.kind == "cudagraph" else config.kind
            return ExecutionRecord(config.kind, ran, self._obstacle, details=self._details)
        graphs = 0 if replayed.captured is None else 1
        reason = replayed.fell_back_because
        if reason is None and not graphs:
            reason = "training ended before a step was captured"
        return ExecutionRecord(
            config.kind, "eager" if reason else config.kind, reason, replayed.prepared_steps,
            replayed.steps_per_batch, graphs, graph_breaks() if self._compiles else None,
            self._details,
        )  # fmt: skip

    def _known_obstacle(self, module: pl.LightningModule) -> str | None:
        """The reason against replaying that is known before training, if any.

        A graph replays kernels with the arguments they were recorded with. Whatever Python decides
        or counts during a step would be decided once, at the capture, and then be silently wrong.
        """
        cell = self._cell
        if not isinstance(module, ExperimentModule):
            return (
                f"{type(module).__name__} is a LightningModule of its own, whose training_step "
                "and hooks are Python that runs in each step"
            )
        if isinstance(module, KeywordModule):
            return "its batches are mappings, and a captured step takes an input and a target"
        if cell.accumulate_grad_batches != 1:
            return "gradients are accumulated over batches, so not every batch ends in a step"
        if getattr(cell.strategy, "find_unused_parameters", False):
            return "DDP's search for unused parameters waits for the device in each step"
        if cell.precision.lightning == "16-mixed":
            return "loss scaling (fp16) reads a flag back in each step; bf16-mixed does not"
        if cell.fault is not None:
            return f"fault={cell.fault.name} acts in Python, in the middle of a step"
        for name, part in module.named_modules():
            if part._forward_hooks or part._forward_pre_hooks or part._backward_hooks:
                return f"{name or 'the module'} has hooks, which run in Python"
        return None


BLOCK_LISTS = ("blocks", "layers")
"""Names under which a network keeps what it repeats."""


def checkpoint_blocks(network: nn.Module) -> int:
    """Let each block of ``network`` keep its inputs only; returns how many blocks there are.

    That takes less memory, for a second forward pass of each block (activation checkpointing).
    Parameters keep their names. Random masks are drawn alike in both passes where there are any.
    Raises ValueError for a network without blocks.
    """
    blocks = repeated_blocks(network)
    if not blocks:
        raise ValueError(
            f"execution.activation_checkpointing: found true, but {type(network).__name__} has no "
            f"list of blocks named {' or '.join(BLOCK_LISTS)}; allowed: a transformer of "
            "scalewise, or a model with such a list"
        )
    if any(isinstance(part, _BatchNorm) for block in blocks for part in block.modules()):
        raise ValueError(
            "execution.activation_checkpointing: found true with batch norm in a block, which "
            "would take each batch into its statistics twice; allowed: false"
        )
    for block in blocks:
        block.forward = _checkpointed(block)
    return len(blocks)


def repeated_blocks(network: nn.Module) -> list[nn.Module]:
    """The blocks of ``network``, in order; none where it has no list of them."""
    for name in BLOCK_LISTS:
        found = getattr(network, name, None)
        if isinstance(found, (nn.ModuleList, nn.Sequential)):
            # A list of single layers has nothing inside a block to forget.
            blocks = [part for part in found if any(True for _ in part.children())]
            if blocks:
                return blocks
    return []


def _checkpointed(block: nn.Module) -> Any:
    forward = block.forward
    # Saving the random state costs a copy and cannot be captured: only where it is used.
    random = any(_is_random(part) for part in block.modules())

    @functools.wraps(forward)
    def recomputed(*inputs: Any) -> Any:
        if not block.training:
            return forward(*inputs)
        return checkpoint(forward, *inputs, use_reentrant=False, preserve_rng_state=random)

    return recomputed


def _is_random(part: nn.Module) -> bool:
    rate = getattr(part, "p", None) if isinstance(part, nn.Dropout) else vars(part).get("dropout")
    return isinstance(rate, (int, float)) and rate > 0


def apply_precision(config: PrecisionConfig) -> None:
    """Set the process-wide switches that Lightning leaves alone."""
    torch.backends.cuda.matmul.allow_tf32 = config.matmul_tf32
    torch.backends.cudnn.allow_tf32 = config.matmul_tf32
