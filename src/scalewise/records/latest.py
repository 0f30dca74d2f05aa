"""The end of a device series, read without reading all of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalewise.records.device_series import DeviceSample, SampledDevice
from scalewise.records.files import RecordError, open_record, parse_json
from scalewise.validation import build

_TAIL_BYTES = 64 * 1024
"""More than any sample of a host's devices takes."""


@dataclass(frozen=True)
class LatestSample:
    """What was last seen of the devices of one host."""

    time: float
    """Unix time."""
    devices: Mapping[str, SampledDevice]
    """By id; a device that was added after the header is absent."""
    samples: Mapping[str, DeviceSample]
    """By id."""
    memory_used_mib: Mapping[str, float | None]
    """Of each device in ``devices`` and in the samples nearby, as it was last read: the last
    sample of a process that is ending lacks it, and those after it lack the whole device. None
    where no sample nearby has it."""


def read_latest_sample(path: Path) -> LatestSample | None:
    """The last whole sample of a device series, or None before the first.

    Raises :class:`RecordError` for a file that is no device series.
    """
    try:
        with open_record(path) as file:
            header = file.readline()
            begin = file.tell()
            file.seek(0, 2)
            file.seek(max(begin, file.tell() - _TAIL_BYTES))
            lines = file.read().split(b"\n")[:-1]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error}") from error
    try:
        named: list[dict[str, Any]] = parse_json(header)["devices"] if header else []
        devices = {d.id: d for d in (build(SampledDevice, plain) for plain in named)}
        # The first line of the tail may be cut, and then is not the start of an object.
        whole = [line for line in lines if line.startswith(b'{"time"') and b'"devices"' in line]
        if not whole:
            return None
        when, samples = _sample(whole[-1])
        return LatestSample(when, devices, samples, _last_memory(devices, whole))
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise RecordError(f"{path}: not a device series: {error}") from error


def _last_memory(known: Iterable[str], lines: Sequence[bytes]) -> dict[str, float | None]:
    """MiB of the devices ``known`` and of all in ``lines``, in which later ones come last."""
    memory: dict[str, float | None] = dict.fromkeys(known)
    for line in lines:
        for id_, sample in _sample(line)[1].items():
            if sample.memory_used_mib is not None or id_ not in memory:
                memory[id_] = sample.memory_used_mib
    return memory


def _sample(line: bytes) -> tuple[float, dict[str, DeviceSample]]:
    plain = parse_json(line)
    samples = [build(DeviceSample, one) for one in plain["devices"]]
    return float(plain["time"]), {sample.id: sample for sample in samples}
