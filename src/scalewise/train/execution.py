"""How one step is executed on its device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ExecutionConfig:
    """The config group ``execution``."""

    name: str
    kind: Literal["eager"]
    """``eager``: operation by operation, as PyTorch runs it by default."""
