"""Which GPUs this process may use.

NVML ignores ``CUDA_VISIBLE_DEVICES``, so it is read here. Indices are NVML's, in PCI bus order:
on a host with unlike GPUs, set ``CUDA_DEVICE_ORDER=PCI_BUS_ID`` to make CUDA count the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scalewise.gpu.nvml import GpuDevice, Nvml


def visible_devices(nvml: Nvml, env: Mapping[str, str]) -> tuple[GpuDevice, ...]:
    """The GPUs that CUDA would show, in CUDA's order.

    As CUDA does it: entries may be indices, UUIDs or unique beginnings of one, or MIG ids
    (``MIG-<uuid>`` or ``MIG-GPU-<uuid>/<gpu instance>/<compute instance>``); the first entry that
    names nothing hides itself and all after it; a device named twice hides all of them. A GPU in
    MIG mode stands for its first instance.
    """
    everything = nvml.all_devices()
    wanted = env.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return tuple(_usable(d, everything) for d in everything if d.parent_uuid is None)
    chosen: list[GpuDevice] = []
    for entry in wanted.split(","):
        device = find_device(everything, entry.strip())
        if device is None:
            break
        chosen.append(_usable(device, everything))
    return tuple(chosen) if len({d.uuid for d in chosen}) == len(chosen) else ()


def find_device(devices: Sequence[GpuDevice], name: str) -> GpuDevice | None:
    """The device that an index, a UUID (or its unique beginning) or a MIG id names."""
    if name.isdecimal():
        return next(
            (d for d in devices if d.index == int(name) and d.parent_uuid is None),
            None,
        )
    if name.startswith("MIG-GPU-") and name.count("/") == 2:
        parent, gpu_instance, compute_instance = name.removeprefix("MIG-").split("/")
        ids = (gpu_instance, compute_instance)
        return next(
            (
                d
                for d in devices
                if d.parent_uuid == parent and d.mig_ids and tuple(map(str, d.mig_ids)) == ids
            ),
            None,
        )
    if not name.startswith(("GPU-", "MIG-")):
        return None
    matches = [d for d in devices if d.uuid.lower().startswith(name.lower())]
    return matches[0] if len(matches) == 1 else None


def _usable(device: GpuDevice, everything: Sequence[GpuDevice]) -> GpuDevice:
    instances = (d for d in everything if d.parent_uuid == device.uuid)
    return next(instances, device)
