"""What can go wrong with NVIDIA's management library.

NvmlError              an answer that is neither "not there" nor "gone"
├── NvmlUnavailable    no driver, or no GPU that can be read
└── GpuLost            a GPU fell off the bus, needs a reset, or its driver went away
"""

from __future__ import annotations

from typing import Any


class NvmlError(Exception):
    """NVML answered with an error that is neither "not there" nor "gone"."""


class NvmlUnavailable(NvmlError):  # noqa: N818 - named for what happened, as below
    """This host has no NVIDIA driver, or no GPU that can be read. One line says which."""


class GpuLost(NvmlError):  # noqa: N818
    """A GPU stopped answering: fell off the bus, needs a reset, or its driver went away."""

    def __init__(self, uuid: str, reason: str) -> None:
        super().__init__(f"GPU {uuid} is lost: {reason}")
        self.uuid = uuid
        self.reason = reason


class ErrorKinds:
    """Which error codes mean "not there", and which "gone"."""

    def __init__(self, api: Any) -> None:
        self.not_there = frozenset(
            {
                api.NVML_ERROR_NOT_SUPPORTED,
                api.NVML_ERROR_FUNCTION_NOT_FOUND,
                api.NVML_ERROR_NO_PERMISSION,
            }
        )
        self.gone = frozenset(
            {
                api.NVML_ERROR_GPU_IS_LOST,
                api.NVML_ERROR_RESET_REQUIRED,
                api.NVML_ERROR_GPU_NOT_FOUND,
                api.NVML_ERROR_DRIVER_NOT_LOADED,
                api.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
                api.NVML_ERROR_UNINITIALIZED,
            }
        )


def words(error: Any) -> str:
    """NVML's own words without capitals or full stop, acronyms kept: ``not supported``."""
    parts = str(error).strip().rstrip(".").split()
    return " ".join(w.lower() if w.istitle() else w for w in parts)
