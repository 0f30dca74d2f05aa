"""A self-test as Markdown and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from faults.matrix import accusations, detections, rows
from faults.observe import HEALTHY, Observation
from scalewise.host import plural


@dataclass(frozen=True)
class Setting:
    """What a self-test ran on."""

    command: str
    devices: tuple[str, ...]
    """Names of the devices of one pair."""
    usable_cores: int
    side_by_side: int
    """Pairs that ran at once."""
    load_average: float | None
    """Of the host over the last minute of the test; None where only records were judged."""
    seconds: float | None
    """Of the whole test; None where only records were judged."""

    def __str__(self) -> str:
        pairs = f"{self.side_by_side} {plural(self.side_by_side, 'pair')} at once"
        told = (
            f"`{self.command}` on {' and '.join(self.devices)}, {self.usable_cores} cores, {pairs}"
        )
        if self.seconds is None or self.load_average is None:
            return f"{told}; judged from its records."
        return f"{told}, {self.seconds:.0f} s, load {self.load_average:.1f} at the end."


def as_markdown(observations: Sequence[Observation], setting: Setting) -> str:
    """The confusion matrix, the detection limits and what healthy runs were accused of."""
    table = rows(observations)
    columns = sorted({name for row in table for name in row.first})
    healthy = [o for o in observations if o.is_healthy]
    busy = [o for o in healthy if o.fault != HEALTHY]
    accused = accusations(observations)
    lines = [
        "# Self-test of the analysis",
        "",
        str(setting),
        "",
        "What was named first (rows: what was planted):",
        "",
        "| planted | magnitude | expected | runs | " + " | ".join(columns) + " |",
        "|---|---|---|---:|" + "---:|" * len(columns),
        *(
            f"| {row.fault} | {row.magnitude} | {row.expected} | {row.runs} | "
            + " | ".join(str(row.first[c] or "") for c in columns)
            + " |"
            for row in table
        ),
        "",
        "| fault | detection limit |",
        "|---|---|",
        *(f"| {d.fault} | {d} |" for d in detections(observations)),
        "",
        f"Healthy runs: {len(healthy)}, {len(busy)} of them on a busy host; with any fault named: "
        f"{sum(bool(o.accused) for o in healthy)}"
        + (f" ({', '.join(f'{name} {n}' for name, n in accused.items())})." if accused else "."),
    ]
    return "\n".join(lines) + "\n"


def as_plain(observations: Sequence[Observation], setting: Setting) -> dict[str, Any]:
    """Everything observed, for JSON."""
    return {
        "schema_version": 2,
        "setting": asdict(setting),
        "detection": [asdict(d) for d in detections(observations)],
        "healthy_runs": sum(o.is_healthy for o in observations),
        "healthy_accused": dict(accusations(observations)),
        "runs": [_run(o) for o in observations],
    }


def _run(observation: Observation) -> dict[str, Any]:
    return {
        "fault": observation.fault,
        "magnitude": observation.magnitude,
        "expected": observation.expected,
        "step_ms": None if observation.step_ms is None else round(observation.step_ms, 3),
        "named": [
            {"cause": one.cause, "ms": round(one.ms, 3), "rank": one.rank, "evidence": one.evidence}
            for one in observation.losses
        ],
        "found": [asdict(one) for one in observation.findings],
    }
