"""What ``benchmarks/weak_scaling.py`` makes of the step times of its runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

ALLOWED_LOSS_POINTS = 1.0
LEFT_MIB = 64.0
"""Of device memory still held when an arm begins, from which on it is told."""


def merged(ranks: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """One row a run from every rank's: the slowest rank's step, and the ``ranks_ms``.

    A rank that waited has ``step_ms`` None.
    """
    rows = []
    for each in zip(*ranks, strict=True):
        trained = [row["step_ms"] for row in each if row["step_ms"] is not None]
        held = [row["held_before_mib"] for row in each if row["held_before_mib"] is not None]
        rows.append(
            {
                **each[0],
                "step_ms": max(trained),
                "ranks_ms": trained,
                "held_before_mib": max(held, default=None),
            }
        )
    return rows


def summarise(
    rows: Sequence[dict[str, Any]], settings: Sequence[str], devices: int
) -> dict[str, Any]:
    """Efficiency of each arm in percent, its difference from ``bare`` in points, the verdict."""
    from scalewise.analysis import estimate_mean, estimate_positive

    def times_ms(name: str, width: int) -> list[float]:
        return [row["step_ms"] for row in rows if (row["arm"], row["devices"]) == (name, width)]

    percent: dict[str, list[float]] = {}
    table = {}
    for name in ("bare", "ours", *dict.fromkeys(settings)):
        alone = times_ms(name, 1) or times_ms("ours", 1)
        together = times_ms(name, devices)
        percent[name] = [100 * one / all_ for one, all_ in zip(alone, together, strict=True)]
        efficiency = estimate_positive(percent[name])
        behind = [ours - bare for ours, bare in zip(percent[name], percent["bare"], strict=True)]
        difference = estimate_mean(behind)
        table[name] = {
            "alone_ms": estimate_positive(alone).value,
            "together_ms": estimate_positive(together).value,
            "alone_from": name if times_ms(name, 1) else "ours",
            "efficiency_percent": efficiency.value,
            "efficiency_low95": efficiency.interval.low if efficiency.interval else None,
            "efficiency_high95": efficiency.interval.high if efficiency.interval else None,
            "difference_points": difference.value,
            "difference_low95": difference.interval.low if difference.interval else None,
            "difference_high95": difference.interval.high if difference.interval else None,
            "rounds_percent": percent[name],
        }
    return {"arms": table, "verdict": verdict(table)}


def verdict(table: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Whether ``ours`` keeps up, which of our settings is best, and what the rounds can tell."""
    ours = table["ours"]
    best = max(
        (name for name in table if name != "bare"), key=lambda n: table[n]["efficiency_percent"]
    )
    return {
        "met": ours["difference_points"] >= -ALLOWED_LOSS_POINTS,
        "resolved": beside(ours, -ALLOWED_LOSS_POINTS),
        "best": best,
        "best_is_above_bare": table[best]["difference_points"] > 0,
        "best_resolved": beside(table[best], 0.0),
    }


def beside(arm: dict[str, Any], points: float) -> bool:
    """Whether the interval of an arm's difference leaves ``points`` out; of one round it cannot."""
    low, high = arm["difference_low95"], arm["difference_high95"]
    return low is not None and not low <= points <= high


def show(found: dict[str, Any]) -> None:
    width, table = len(found["devices"]), found["arms"]
    print(
        f"{found['workload']}, {found['batch_per_device']} samples a device, on {width} x "
        f"{found['devices'][0]}, peer-to-peer {found['p2p']}; {found['rounds']} of "
        f"{found['rounds_asked']} rounds, each of "
        f"{found['steps']} timed steps, seed {found['seed']}, {found['seconds']:.0f} s\n"
        f"{'arm':18}{'ms x1':>10}{f'ms x{width}':>10}{'efficiency %':>14}{'95 % interval':>18}"
        f"{'points from bare':>18}{'95 % interval':>18}"
    )
    for name, arm in table.items():
        borrowed = "" if arm["alone_from"] == name else "*"
        difference = f"{arm['difference_points']:+.2f}" if name != "bare" else "-"
        print(
            f"{name:18}{arm['alone_ms']:9.3f}{borrowed:1}{arm['together_ms']:10.3f}"
            f"{arm['efficiency_percent']:14.2f}{span(arm, 'efficiency'):>18}"
            f"{difference:>18}{span(arm, 'difference') if name != 'bare' else '-':>18}"
        )
    if any(arm["alone_from"] != name for name, arm in table.items()):
        print("* as ours: on one device the setting changes nothing")
    told, ours = found["verdict"], table["ours"]
    print(
        f"ours is {ours['difference_points']:+.2f} points from bare, at least "
        f"-{ALLOWED_LOSS_POINTS:g} wanted: {'met' if told['met'] else 'MISSED'}"
        f"{doubt(told['resolved'])}"
    )
    best = told["best"]
    chosen = " ".join(found["settings"].get(best, ["defaults"]))
    print(
        f"best of ours: {best} ({chosen}), {table[best]['difference_points']:+.2f} points from "
        f"bare: {'better' if told['best_is_above_bare'] else 'NOT BETTER'}"
        f"{doubt(told['best_resolved'])}"
    )
    held = max((row["held_before_mib"] or 0.0 for row in found["rows"]), default=0.0)
    if held > LEFT_MIB:
        print(f"an arm began with {held:.0f} MiB of device memory still held by others")


def span(arm: dict[str, Any], figure: str) -> str:
    low, high = arm[f"{figure}_low95"], arm[f"{figure}_high95"]
    return "one round" if low is None else f"{low:.2f} to {high:.2f}"


def doubt(resolved: bool) -> str:
    return "" if resolved else " (not resolved: the interval allows both)"
