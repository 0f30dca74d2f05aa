"""What happens to a GPU beside its readings: it is lost, answers again, or its driver reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scalewise.gpu.xid import xid_words


@dataclass(frozen=True)
class DeviceEvent:
    """Something that happened to a device, in words."""

    kind: Literal["lost", "back", "xid"]
    text: str
    xid: int | None = None
    """The driver's number of an error; None for the other kinds."""


def lost(index: int, reason: str) -> DeviceEvent:
    return DeviceEvent("lost", f"GPU {index} is lost: {reason}")


def back(index: int) -> DeviceEvent:
    return DeviceEvent("back", f"GPU {index} answers again")


def reported(index: int, xid: int) -> DeviceEvent:
    return DeviceEvent("xid", f"GPU {index}: the driver reported {xid_words(xid)}", xid)
