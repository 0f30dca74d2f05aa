"""What ``scalewise top --log`` writes."""

from __future__ import annotations

from pathlib import Path

from scalewise.gpu.frames import Frame
from scalewise.gpu.json_array import JsonArrayFile
from scalewise.gpu.seed_format import multi_entry, multi_gpu_path, single_entry


class StatsLog:
    """``--log FILE``: the earlier GPU monitor's two files, valid JSON at every moment."""

    def __init__(self, path: Path, gpu_index: int | None) -> None:
        self._gpu_index = gpu_index
        self._single = JsonArrayFile(path)
        self._multi = JsonArrayFile(multi_gpu_path(path))

    def write(self, frame: Frame) -> None:
        """Append a frame. Raises OSError."""
        chosen = next(
            (d for d in frame.devices if self._gpu_index in (None, d.index)),
            None,
        )
        if chosen is not None and chosen.id in frame.samples:
            self._single.append(single_entry(frame.time, chosen, frame.samples[chosen.id]))
        self._multi.append(multi_entry(frame.time, frame.devices, frame.samples))

    def close(self) -> None:
        self._single.close()
        self._multi.close()
