"""Puts a rehearsal in place of what this host has too few devices for."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from scalewise.config import ConfigError, HardwareConfig, as_rehearsal
from scalewise.sweep.plan import Request


def rehearse_absent(
    requests: Iterable[Request],
    devices_of: Callable[[HardwareConfig], int | None],
    models_of: Callable[[HardwareConfig], str],
) -> tuple[list[Request], list[Request], list[str]]:
    """The requests, those rehearsed that ask for ``rehearse`` and for more devices than there are.

    Returns them, with ``rehearse.all`` rehearsals of what fits too, and a line for each link.
    Raises :class:`ConfigError` for what cannot be rehearsed.
    """
    settled, beside, lines = [], list[Request](), dict[str, None]()
    for one in requests:
        asked = one.cell.rehearse
        plain = {key: value for key, value in one.plain.items() if key != "rehearse"}
        real = Request(one.overrides, plain)
        strategy, available = one.cell.strategy, devices_of(one.cell.hardware)
        if not asked.on or strategy.kind == "single":
            settled.append(real)
            continue
        if available is None:
            raise ConfigError(
                f"rehearse: found {asked.name} on hosts that are not known yet, or without devices "
                "that fit; allowed: hydra/launcher=local, or rehearse=none"
            )
        if strategy.kind == "ddp" and strategy.devices == "auto" and available < 2:
            raise ConfigError(
                f"rehearse: found {asked.name} with strategy.devices=auto on {available} device; "
                "allowed: a number to rehearse (strategy.devices=8)"
            )
        devices = available if strategy.devices == "auto" else strategy.devices
        fits = devices <= available
        if devices < 2 or (fits and not asked.all):
            settled.append(real)
            continue
        if strategy.kind != "ddp":
            raise ConfigError(
                f"rehearse: found {asked.name} with strategy={strategy.name} on {devices} devices; "
                f"allowed: strategy=ddp, or at most {available} devices"
            )
        link = asked.link(models_of(one.cell.hardware))
        lines[
            f"rehearse: one rank of N on this host, the others emulated over {link.name} "
            f"({link.source})"
        ] = None
        rehearsal = Request(one.overrides, as_rehearsal(plain, devices, link))
        settled.append(real if fits else rehearsal)
        beside += [rehearsal] if fits else []
    none = "rehearse: nothing, as all of it fits this host (rehearse.all=true: that too)"
    return settled, beside, list(lines) or [none]
