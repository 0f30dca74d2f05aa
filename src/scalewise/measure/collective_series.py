"""All collectives from the smallest message to the largest, in the time there is for them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from scalewise.errors import first_line
from scalewise.measure.collective_exercise import COLLECTIVES
from scalewise.measure.collectives import NoMemoryError, measure_collective
from scalewise.measure.doctor_team import Team
from scalewise.records.doctor_rates import Backend, CollectiveRate

_BYTES_COUNT_FROM = 2**17
"""Smaller messages take their latency, and hardly anything beyond."""


@dataclass
class CollectiveSeries:
    """What :func:`measure_all` came to."""

    rates: list[CollectiveRate]
    missing: dict[str, str]
    broken: str | None = None
    """Why it ended early: the ranks may stand at different calls now and must not go on."""


def measure_all(
    team: Team,
    backend: Backend,
    sizes: tuple[int, ...],
    budget_s: float,
    device: torch.device,
    group: Any,
) -> CollectiveSeries:
    """Every collective at every size, smallest first, within about ``budget_s`` on every rank.

    A size that would not fit into its collective's share of the time is left out, with all that
    are larger. The share is of what the collectives before it have left; the
    smallest size is measured in any case.
    """
    series = CollectiveSeries([], {})
    point_s = budget_s / len(sizes) / len(COLLECTIVES) / 2  # the other half prepares and checks
    begin = time.perf_counter()
    for number, collective in enumerate(COLLECTIVES):
        (begun_s,) = team.largest([time.perf_counter() - begin])
        deadline_s = begun_s + max(0.0, budget_s - begun_s) / (len(COLLECTIVES) - number)
        done: list[CollectiveRate] = []
        for size in sizes:
            (elapsed_s,) = team.largest([time.perf_counter() - begin])
            if done and elapsed_s + expected_s(done, size) > deadline_s:
                series.missing[f"{backend} {collective} from {size} bytes"] = (
                    f"does not fit into the {budget_s:g} s for {backend}"
                )
                break
            try:
                done.append(
                    measure_collective(team, backend, collective, size, point_s, device, group)
                )
            except NoMemoryError as error:
                series.missing[f"{backend} {collective} from {size} bytes"] = str(error)
                break
            except RuntimeError as error:
                series.broken = f"{collective} of {size} bytes: {first_line(error)}"
                series.missing[f"{backend} from {collective} of {size} bytes"] = first_line(error)
                return series
            series.rates.append(done[-1])
    return series


def expected_s(done: Sequence[CollectiveRate], size: int) -> float:
    """Seconds the next size will take, its warm-up and three repetitions.

    What the last one took beyond the first, the latency, grows as bytes do: from sizes on at which
    bytes are what takes time. Of each the fastest repetition counts, so that one slow moment does
    not end the series.
    """
    if not done:
        return 0.0
    if done[-1].bytes < _BYTES_COUNT_FROM:
        return 7 * min(done[-1].timing.samples_us) / 1e6
    latency_us, last_us = (min(rate.timing.samples_us) for rate in (done[0], done[-1]))
    growing_us = max(0.0, last_us - latency_us) * max(1.0, size / done[-1].bytes)
    return 7 * (latency_us + growing_us) / 1e6
