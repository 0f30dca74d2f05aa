"""How GPUs are joined, in the words of ``nvidia-smi topo``."""

from __future__ import annotations

from typing import Any

_P2P_READ, _P2P_NVLINK = 0, 2
"""Indices of nvmlDeviceGetP2PStatus (pynvml's own constant for READ is a tuple by mistake)."""

_PEER_STATUS = {
    0: "ok",
    1: "chipset not supported",
    2: "GPU not supported",
    3: "I/O hub topology not supported",
    4: "disabled by a driver setting",
    5: "not supported",
    6: "unknown",
}


def link_kind(api: Any, a: Any, b: Any) -> str:
    """The best link of two device handles: ``NV<links>``, else the nearest common ancestor.

    ``PIX`` one PCIe switch, ``PXB`` several, ``PHB`` a host bridge, ``NODE`` a NUMA node, ``SYS``
    across nodes, ``INT`` one board. Raises NVML's errors.
    """
    links = nvlinks(api, a, b)
    if links:
        return f"NV{links}"
    level = api.nvmlDeviceGetTopologyCommonAncestor(a, b)
    return {
        api.NVML_TOPOLOGY_INTERNAL: "INT",
        api.NVML_TOPOLOGY_SINGLE: "PIX",
        api.NVML_TOPOLOGY_MULTIPLE: "PXB",
        api.NVML_TOPOLOGY_HOSTBRIDGE: "PHB",
        api.NVML_TOPOLOGY_NODE: "NODE",
    }.get(level, "SYS")


def nvlinks(api: Any, a: Any, b: Any) -> int:
    """NVLinks that join two devices, directly or through NVSwitches."""
    try:
        if api.nvmlDeviceGetP2PStatus(a, b, _P2P_NVLINK) != 0:
            return 0
        target = api.nvmlDeviceGetPciInfo(b).busId
    except api.NVMLError as error:
        if error.value in _absent(api):
            return 0
        raise
    active = _active_links(api, a)
    direct = sum(_remote_bus(api, a, link) == target for link in active)
    # Behind NVSwitches the remote end is the switch: every link of both leads there.
    return direct or min(len(active), len(_active_links(api, b)))


def peer_access(api: Any, a: Any, b: Any) -> str:
    """``ok`` where ``a`` reads ``b``'s memory directly, else why not. Raises NVML's errors."""
    return _PEER_STATUS.get(api.nvmlDeviceGetP2PStatus(a, b, _P2P_READ), "unknown")


def _active_links(api: Any, handle: Any) -> list[int]:
    active = []
    for link in range(api.NVML_NVLINK_MAX_LINKS):
        try:
            if api.nvmlDeviceGetNvLinkState(handle, link):
                active.append(link)
        except api.NVMLError as error:
            # Link numbers end where the device's links do.
            if error.value not in (*_absent(api), api.NVML_ERROR_INVALID_ARGUMENT):
                raise
            break
    return active


def _remote_bus(api: Any, handle: Any, link: int) -> str | None:
    try:
        return str(api.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId)
    except api.NVMLError as error:
        if error.value in (*_absent(api), api.NVML_ERROR_INVALID_ARGUMENT):
            return None
        raise


def _absent(api: Any) -> tuple[int, ...]:
    return (
        api.NVML_ERROR_NOT_SUPPORTED,
        api.NVML_ERROR_FUNCTION_NOT_FOUND,
        api.NVML_ERROR_NO_PERMISSION,
    )
