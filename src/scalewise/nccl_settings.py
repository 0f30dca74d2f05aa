"""NCCL's environment variables: what is legal, and what is legal but unwise.

NCCL itself is lenient: an illegal value is replaced by some other, silently unless NCCL_DEBUG asks
for it, and the run is measured with a setting nobody chose. So values are checked before a process
starts. Values as in NVIDIA's NCCL user guide, "Environment Variables".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from scalewise.ranges import require
from scalewise.validation import closest

_IMAGE_LABELS: Final = ("NCCL_VERSION",)
"""What NVIDIA's container images put into the environment beside settings: NCCL reads none."""
_SWITCH: Final = ("0", "1")
_DISTANCE: Final = ("LOC", "NVL", "PIX", "PXB", "PHB", "SYS", "0", "1", "2", "3", "4", "5")

_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "NCCL_NTHREADS": ("64", "128", "256", "512"),
    "NCCL_P2P_DISABLE": _SWITCH,
    "NCCL_SHM_DISABLE": _SWITCH,
    "NCCL_IB_DISABLE": _SWITCH,
    "NCCL_CUMEM_ENABLE": _SWITCH,
    "NCCL_NVLS_ENABLE": ("0", "1", "2"),
    "NCCL_P2P_LEVEL": _DISTANCE,
    "NCCL_NET_GDR_LEVEL": _DISTANCE,
    "NCCL_DEBUG": ("VERSION", "WARN", "INFO", "TRACE"),
}
_LISTS: Final[Mapping[str, tuple[str, ...]]] = {
    "NCCL_ALGO": (
        "Tree",
        "Ring",
        "CollNet",
        "CollNetDirect",
        "CollNetChain",
        "NVLS",
        "NVLSTree",
        "PAT",
    ),
    "NCCL_PROTO": ("LL", "LL128", "Simple"),
}
_COUNTS: Final = ("NCCL_BUFFSIZE", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS")


def check_nccl(settings: Mapping[str, str | int]) -> None:
    """Raise ValueError for the first setting NCCL would not take as it stands.

    Variables that are not known here are passed on unchecked.
    """
    known = (*_CHOICES, *_LISTS, *_COUNTS)
    for name, value in settings.items():
        text = str(value)
        require(
            "nccl",
            name,
            name.startswith("NCCL_"),
            f"names of NCCL_* environment variables{closest(name, known)}",
        )
        if name in _CHOICES:
            choices = _CHOICES[name]
            require(f"nccl.{name}", value, text.upper() in choices, " | ".join(choices))
        elif name in _LISTS:
            _check_list(name, text)
        elif name in _COUNTS:
            require(f"nccl.{name}", value, text.isdecimal() and int(text) >= 1, "at least 1")
    low, high = settings.get("NCCL_MIN_NCHANNELS"), settings.get("NCCL_MAX_NCHANNELS")
    if low is not None and high is not None:
        allowed = f"at most NCCL_MAX_NCHANNELS ({high})"
        require("nccl.NCCL_MIN_NCHANNELS", low, int(low) <= int(high), allowed)


def set_in(environment: Mapping[str, str]) -> dict[str, str]:
    """NCCL's settings among the variables of an environment."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith("NCCL_") and name not in _IMAGE_LABELS
    }


def nccl_warnings(settings: Mapping[str, str | int]) -> list[str]:
    """One line for each setting that is legal and can still do harm."""
    warnings = []
    algorithms = _general_part(str(settings.get("NCCL_ALGO", "")))
    if algorithms == "tree":
        warnings.append(
            "NCCL_ALGO=Tree holds for every collective, and only all-reduce has a tree: NCCL can "
            "abort the others (NVIDIA/nccl issue 317); write NCCL_ALGO=allreduce:tree"
        )
    if str(settings.get("NCCL_P2P_DISABLE")) == "1":
        warnings.append(
            "NCCL_P2P_DISABLE=1 sends everything through host memory, also where GPUs reach one "
            "another directly; such a run is marked emulated"
        )
    return warnings


def _check_list(name: str, text: str) -> None:
    """``a,b`` or ``^a``, for all collectives or ``allreduce:a;broadcast:b``."""
    allowed = {choice.lower() for choice in _LISTS[name]}
    for part in text.split(";"):
        values = part.rpartition(":")[2].removeprefix("^")
        for value in values.split(","):
            shown = " | ".join(_LISTS[name]) + ", in a list with commas"
            require(f"nccl.{name}", text, value.strip().lower() in allowed, shown)


def _general_part(text: str) -> str:
    """The part of a list that holds for every collective; "" if there is none."""
    parts = [part.strip().lower() for part in text.split(";")]
    return next((part for part in parts if ":" not in part), "")
