"""Whether a checkpoint may be loaded: to unpickle one is to run what it says."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from pathlib import Path, PosixPath
from pickle import UnpicklingError
from typing import Any

import torch
from omegaconf import (
    AnyNode,
    BooleanNode,
    BytesNode,
    DictConfig,
    FloatNode,
    IntegerNode,
    ListConfig,
    PathNode,
    StringNode,
)
from omegaconf.base import ContainerMetadata, Metadata

from scalewise.config import ConfigError
from scalewise.records.checkpoints import untrusted
from scalewise.train.checkpoint_config import CLOSE_IT, untrusted_checkpoint

_PLAIN: list[Any] = [
    dict, int, list, Any, OrderedDict, defaultdict, PosixPath, Metadata, ContainerMetadata,
    DictConfig, ListConfig, AnyNode, BooleanNode, BytesNode, FloatNode, IntegerNode, PathNode,
    StringNode,
]  # fmt: skip
"""What hyper-parameters may be made of beside what torch allows: to load them runs no code."""


def check_trust(cell: Path, checkpoint: Path, rank: int) -> None:
    """Refuse to load what may run somebody else's code. Raises :class:`ConfigError`.

    Both guards are needed: a file of plain values alone runs no code, but torch's sharded
    checkpoints have no safe way to be read, and nobody is to choose the weights either.
    """
    why = untrusted(cell)
    if why is not None:
        raise ConfigError(untrusted_checkpoint(why, CLOSE_IT))
    torch.serialization.add_safe_globals(_PLAIN)
    for name in ("trainer.ckpt", f"rank{rank}.pt"):
        why = _unsafe(checkpoint / name)
        if why is not None:
            raise ConfigError(untrusted_checkpoint(why, "hyper-parameters of plain values"))


def _unsafe(path: Path) -> str | None:
    """Why a file is not made of plain values and tensors alone; its tensors are not read."""
    try:
        found = sorted(torch.serialization.get_unsafe_globals_in_checkpoint(path))
        if found:
            return f"{path} holds {', '.join(found)} beside plain values and tensors"
        # What torch does not build is not known before: a defaultdict with something in it.
        torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except (ValueError, RuntimeError, UnpicklingError) as error:
        advice, _, reason = str(error).partition("WeightsUnpickler error:")
        said = (reason or advice).strip().partition("\n")[0]
        return f"{path} cannot be loaded safely: {said}"
    return None
