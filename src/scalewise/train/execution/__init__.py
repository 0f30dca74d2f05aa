"""How one step is executed on its device: eager, compiled, or replayed as one CUDA graph."""

from scalewise.train.execution.config import ExecutionConfig

__all__ = ["ExecutionConfig"]
