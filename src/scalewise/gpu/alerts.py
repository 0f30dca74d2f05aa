"""Conditions of a GPU that a person should look at, each said once.

* throttling: heat, a power brake or a hardware slowdown at first sight; a power cap or sync boost
  only after ten samples in a row, because a busy GPU touches its cap now and then. Clocks that
  somebody chose (application clocks, display clock setting) are no alert;
* memory errors: a counter rose while the cell ran (what was counted before is history);
* memory nearly full: over 95 % used;
* lost: the GPU stopped answering (fell off the bus, needs a reset, its driver went away);
* XID: the driver reported an error of the GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal

from scalewise.gpu.events import DeviceEvent
from scalewise.gpu.xid import xid_level, xid_words
from scalewise.records import Alert, DeviceSample, SampledDevice

NEARLY_FULL: Final = 0.95
PATIENCE: Final = 10
"""Samples in a row with a harmless reason until it is worth an alert."""

_CHOSEN: Final = frozenset({"application clocks", "display clock setting"})
_COMMON: Final = frozenset({"power cap", "sync boost"})
_COUNTERS: Final[Mapping[str, tuple[Literal["warn", "error"], str]]] = {
    "ecc_corrected": ("warn", "corrected memory errors"),
    "ecc_uncorrected": ("error", "uncorrected memory errors"),
    "remapped_rows": ("warn", "memory rows remapped"),
}


_Condition = Literal["throttling", "ecc", "memory", "lost", "xid"]
_Found = tuple[Literal["warn", "error"], _Condition, str, str]
"""Level, condition, what tells it from others of the device, text."""


class DeviceAlerts:
    """Remembers what was said and what the counters stood at."""

    def __init__(self) -> None:
        self._said: set[tuple[str, str]] = set()
        self._in_a_row: dict[tuple[str, str], int] = {}
        self._counted: dict[tuple[str, str], int] = {}

    def check(self, when: float, device: SampledDevice, sample: DeviceSample) -> Iterator[Alert]:
        """Alerts that this sample, taken at Unix time ``when``, gives rise to."""
        found = (
            *self._throttling(device, sample),
            *self._memory_errors(device, sample),
            *_nearly_full(device, sample),
        )
        yield from self._say(when, device, found)

    def happened(self, when: float, device: SampledDevice, event: DeviceEvent) -> Iterator[Alert]:
        """Alerts that an event at Unix time ``when`` gives rise to."""
        if event.kind == "lost":
            yield from self._say(when, device, [("error", "lost", "lost", event.text)])
        elif event.xid is not None:
            what: _Found = (xid_level(event.xid), "xid", xid_words(event.xid), event.text)
            yield from self._say(when, device, [what])

    def _say(self, when: float, device: SampledDevice, found: Iterable[_Found]) -> Iterator[Alert]:
        for level, condition, key, text in found:
            if (device.id, key) not in self._said:
                self._said.add((device.id, key))
                # WandB takes titles of less than 64 characters.
                title = f"GPU {device.index}: {key}"[:63]
                yield Alert(when, level, condition, device.id, title, text)

    def _throttling(self, device: SampledDevice, sample: DeviceSample) -> Iterator[_Found]:
        if sample.throttle_reasons is None:
            return
        present = set(sample.throttle_reasons)
        for reason in _COMMON:
            key = (device.id, reason)
            self._in_a_row[key] = self._in_a_row.get(key, 0) + 1 if reason in present else 0
        for reason in sample.throttle_reasons:
            if reason in _CHOSEN:
                continue
            if reason in _COMMON and self._in_a_row[device.id, reason] < PATIENCE:
                continue
            clock = "" if sample.sm_clock_mhz is None else f" at {sample.sm_clock_mhz:.0f} MHz"
            heat = "" if sample.temperature_c is None else f", {sample.temperature_c:.0f} °C"
            power = "" if sample.power_w is None else f", {sample.power_w:.0f} W"
            yield (
                "warn",
                "throttling",
                f"held back by {reason}",
                f"{device.name} {device.index} is held back by {reason}{clock}{heat}{power}",
            )

    def _memory_errors(self, device: SampledDevice, sample: DeviceSample) -> Iterator[_Found]:
        for metric, (level, words) in _COUNTERS.items():
            count = getattr(sample, metric)
            if count is None:
                continue
            before = self._counted.setdefault((device.id, metric), count)
            if count > before:
                yield (
                    level,
                    "ecc",
                    words,
                    f"{device.name} {device.index}: {count - before} {words} while this cell ran",
                )


def _nearly_full(device: SampledDevice, sample: DeviceSample) -> Iterator[_Found]:
    used, total = sample.memory_used_mib, device.memory_total_mib
    if used is not None and total and used > NEARLY_FULL * total:
        yield (
            "warn",
            "memory",
            "memory nearly full",
            f"{device.name} {device.index}: {used:,.0f} of {total:,.0f} MiB used "
            f"({used / total:.1%}); a smaller batch_size leaves room",
        )
