"""``benchmark_{model}_{mode}_gpu.json`` with every run, and ``comparison_report_{model}.md``."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from scalewise.analysis.figures import MISSING, estimate, figure_as_plain, number, ratio
from scalewise.analysis.run import Run
from scalewise.analysis.runs import Configuration
from scalewise.analysis.scaling import Pair
from scalewise.analysis.summary import Analysis
from scalewise.report.study.selection import batch, by_name, file_part
from scalewise.validation import to_plain

Mode = Literal["single", "multi"]


def texts(analysis: Analysis) -> Iterator[tuple[str, str]]:
    """File name and content."""
    for model, configs in by_name(analysis, "model").items():
        sides: dict[Mode, list[Configuration]] = {
            "single": [c for c in configs if c.devices == 1],
            "multi": [c for c in configs if (c.devices or 0) > 1],
        }
        for mode, side in sides.items():
            if side:
                yield f"benchmark_{file_part(model)}_{mode}_gpu.json", _json(model, mode, side)
        pairs = [p for p in analysis.pairs if p.multi.name("model") == model]
        if pairs:
            yield f"comparison_report_{file_part(model)}.md", comparison(model, pairs)


def _json(model: str, mode: Mode, configs: Sequence[Configuration]) -> str:
    plain = {
        "model": model,
        "mode": mode,
        "results": [
            {
                "configuration": config.label,
                "dataset": config.name("dataset"),
                "strategy": config.name("strategy"),
                "devices": config.devices,
                "device_name": _device_name(config),
                "global_batch_size_samples": batch(config),
                "global_samples_per_s": figure_as_plain(config.estimate("samples_per_s")),
                "step_time_ms": figure_as_plain(config.estimate("step_time_ms")),
                "runs": [_run(run) for run in config.runs],
            }
            for config in configs
        ],
    }
    return json.dumps(plain, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def _device_name(config: Configuration) -> str | None:
    result = config.runs[0].cell.result
    return result.ranks[0].device.name if result else None


def _run(run: Run) -> dict[str, Any]:
    result = run.cell.result
    return {
        "cell": run.cell.planned.name,
        "repeat": run.cell.planned.repeat,
        "seed": (run.cell.config or {}).get("seed"),
        "started_at_unix_s": result and result.started_at,
        "global_samples_per_s": run.samples_per_s,
        "step_time_ms": to_plain(run.throughput.step_time_ms) if run.throughput else None,
        "timed_steps": run.throughput.steps if run.throughput else None,
        "peak_memory_per_device_mib": run.peak_memory_mib,
        "memory_used_per_device_mib": run.memory_used_mib,
        "utilization_per_device_percent": run.utilization_percent,
        "utilization_readings": run.utilization_readings,
        "exposed_comm_ms": _exposed(run),
        "loss": run.loss and {"name": run.loss.name, "final": run.loss.final},
    }


def _exposed(run: Run) -> float | None:
    if run.anatomy is None:
        return None
    mean = run.anatomy.mean("device") or run.anatomy.mean("host")
    return mean.phases_ms["exposed_comm"] if mean else None


def comparison(model: str, pairs: Sequence[Pair]) -> str:
    """One device against several, batch by batch, and what follows on average."""
    lines = [
        f"# {model}: one device against several",
        "",
        "Global samples/s, mean over runs with 95 % intervals. Recommendation is the published "
        "rule (speedup of 1.1 or more beneficial, 0.95 or more marginal, else single), which "
        "looks at neither the number of devices nor the doubt; the verdict needs its whole "
        "interval and an efficiency of at least 0.5.",
        "",
        "| dataset | batch | devices | single | multi | speedup | recommendation | verdict |",
        "|---|---:|---:|---:|---:|---:|---|---|",
    ]
    ordered = sorted(
        pairs, key=lambda p: (p.multi.name("dataset") or "", p.devices, batch(p.multi) or 0)
    )
    for pair in ordered:
        cells = (
            pair.multi.name("dataset") or MISSING,
            str(batch(pair.multi) or MISSING),
            str(pair.devices),
            estimate(pair.single.estimate("samples_per_s")),
            estimate(pair.multi.estimate("samples_per_s")),
            ratio(pair.speedup),
            pair.seed_label,
            pair.judgement.verdict,
        )
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "## Average and conclusion", ""]
    for devices in sorted({p.devices for p in ordered}):
        lines.append(f"- {_conclusion([p for p in ordered if p.devices == devices], devices)}")
    return "\n".join(lines) + "\n"


def _conclusion(pairs: Sequence[Pair], devices: int) -> str:
    # Speedups are ratios: their mean is the geometric one.
    mean = math.exp(sum(math.log(p.speedup.value) for p in pairs) / len(pairs))
    verdicts = [p.judgement.verdict for p in pairs]
    counted = ", ".join(f"{verdicts.count(v)} {v}" for v in dict.fromkeys(verdicts))
    return (
        f"On {devices} devices: average speedup {number(mean)} (geometric mean of {len(pairs)}); "
        f"verdicts: {counted}."
    )
