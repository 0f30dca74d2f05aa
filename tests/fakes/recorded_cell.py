"""Cells as a sweep would leave them, written through the records API, for tests."""

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fakes.recorded import provenance, rank_summary
from fakes.step_files import append_step
from scalewise.records import (
    Alert,
    CellFolder,
    CellResult,
    DeviceInfo,
    DeviceSample,
    DeviceSeriesWriter,
    Ending,
    MetricRow,
    MetricsWriter,
    PlannedCell,
    RankSummary,
    SampledDevice,
    StepWriter,
    SweepFolder,
    SweepPlan,
)

BATCH = 16
STEP_MS = 100.0
WARMUP_STEPS = 5
ARRIVAL_MS = (40.0, 60.0, 50.0, 50.0)


def plan_sweep(folder: Path, names: Sequence[str]) -> SweepFolder:
    """Write ``sweep.json`` with one cell a name."""
    sweep = SweepFolder(folder)
    cells = tuple(PlannedCell(f"id-{n}", f"cfg-{n}", n, ("model=medium",), 0, 2) for n in names)
    sweep.save_plan(SweepPlan(time.time(), ("train.py", "-m"), 0, cells))
    return sweep


def own_loss(step: int, rank: int) -> float:
    """What rank ``rank`` records after ``step`` steps: its samples are not the others'."""
    return math.exp(-step / 50) * (1 + rank)


class RecordedCell:
    """A cell of ``ranks`` ranks that has made ``steps`` and can be written bit by bit.

    Every step takes ``STEP_MS`` of recorded (not of real) time. Rank r is ready with its last
    gradient after ``ARRIVAL_MS[r]``.
    """

    def __init__(
        self,
        folder: CellFolder,
        *,
        ranks: int = 2,
        gpus: bool = True,
        config: Mapping[str, Any] | None = None,
        steps: int = 0,
    ) -> None:
        self.folder = folder
        self.ranks = ranks
        self.started_at = time.time()
        self.steps = 0
        folder.clear_attempt()
        folder.save_config(
            {
                "model": {"name": "medium", "_target_": "scalewise.models.mlp.MLP"},
                "dataset": {"name": "tabular"}, "strategy": {"name": "ddp"},
                "precision": {"name": "fp32"}, "scaling": "strong", "log_every_n_steps": 10,
                "tracking": {"name": "both", "trackers": ["trackio", "wandb"]}, **(config or {}),
            }
        )  # fmt: skip
        kind = "NVIDIA A10G" if gpus else "a processor"
        self.devices = [
            DeviceInfo("cuda", kind, f"GPU-{r}", r) if gpus else DeviceInfo("cpu", kind)
            for r in range(ranks)
        ]
        folder.save_provenance(provenance(self.devices))
        self._metrics = [MetricsWriter(folder.metrics_path(r)) for r in range(ranks)]
        self._steps = [StepWriter(folder.steps_path(r)) for r in range(ranks)]
        self._sampled = tuple(
            SampledDevice(d.uuid or f"rank{r}", r, d.name, r) for r, d in enumerate(self.devices)
        )
        self._series = DeviceSeriesWriter(
            folder.device_series_path("0123456789ab"), "0123456789ab",
            "nvml" if gpus else "process", 1.0, self._sampled,
        )  # fmt: skip
        if steps:
            self.train(steps)

    def train(self, steps: int) -> None:
        """Write ``steps`` more steps, a metrics row every 10 and a device sample every second."""
        start_ns = time.perf_counter_ns() - int((time.time() - self.started_at) * 1e9)
        for step in range(self.steps + 1, self.steps + steps + 1):
            now = self.started_at + step * STEP_MS / 1000
            for rank, writer in enumerate(self._steps):
                arrival = ARRIVAL_MS[rank]
                times = {
                    "data_wait": 2.0, "forward": 10.0, "backward": arrival - 12.0,
                    "exposed_comm": STEP_MS - arrival - 5.0, "optimizer": 5.0, "step": STEP_MS,
                    "arrival": arrival,
                }  # fmt: skip
                flags = 1 if step <= WARMUP_STEPS else 0
                begin = start_ns + int((step - 1) * STEP_MS * 1e6)
                append_step(writer, step - 1, begin, 0, BATCH, flags, times)
            if step % 10 == 0:
                for rank, metrics in enumerate(self._metrics):
                    values = {"train_loss": own_loss(step, rank), "learning_rate": 1e-3}
                    samples = step * BATCH * self.ranks
                    metrics.append(MetricRow(now, step, 0, samples, values, BATCH))
                self._sample(now, step)
        self.steps += steps
        for writer in self._steps:
            writer.flush()

    def _sample(self, now: float, step: int) -> None:
        gpus = self.devices[0].kind == "cuda"
        samples = {
            one.id: DeviceSample(
                one.id, 90.0 + one.index, 12000.0 + 50 * one.index,
                *((150.0 + step % 7, 60.0 + one.index) if gpus else ()),
                throttle_reasons=() if gpus else None,
            )
            for one in self._sampled
        }  # fmt: skip
        self._series.append(now, samples, 0.1)

    def alert(self, alert: Alert) -> None:
        self._series.alert(alert)

    def expected_rows(self) -> int:
        """Rows a tracker must hold once the cell has ended with a result.

        A metrics row of each rank, one of what they come to together, and a device sample every 10
        steps; windows of 10 steps (a second of recorded time), the first shortened by warm-up, and
        one for what is left, which end at steps 10, 20 and so on; the summary.
        """
        assert self.steps >= 20
        windows = math.ceil((self.steps - 1) / 10)
        metrics = self.ranks + 1 if self.ranks > 1 else 1
        return self.steps // 10 * (metrics + 1) + windows + 1

    def close(self) -> None:
        for file in (*self._metrics, *self._steps, self._series):
            file.close()

    def succeed(self, attempt: int = 1, ids: Sequence[str] = ("id-{}", "cfg-{}")) -> None:
        """End with a result; ``ids`` are those of cell and configuration, given its name."""
        self.close()
        summaries = tuple(self._rank_summary(r) for r in range(self.ranks))
        name, took_s = self.folder.name, self.steps * STEP_MS / 1000
        self.folder.save_result(
            CellResult(
                *(one.format(name) for one in ids), name, 0, attempt, self.started_at,
                self.started_at + took_s, took_s, self.ranks, "ddp", "strong", BATCH * self.ranks,
                BATCH, (), summaries,
            )
        )  # fmt: skip

    def fail(self, number: int = 1) -> None:
        """End as a try that failed."""
        self.close()
        self.folder.save_attempt(
            Ending("failed", "oom", "rank 1 ran out of memory", 1, 1, None,
                   ("CUDA out of memory",), number, self.started_at)
        )  # fmt: skip

    def _rank_summary(self, rank: int) -> RankSummary:
        return rank_summary(
            rank, self.devices[rank], self.steps, BATCH, parameters_total=54403,
            parameters_trainable=54403, peak_allocated_mib=100.0 + rank, peak_rss_mib=500.0,
            metrics={"val_accuracy": 0.9, "train_loss": None}, metric_rows=self.steps // 10,
        )  # fmt: skip


def finish(sweep: SweepFolder, planned: PlannedCell, steps: int = 20) -> CellFolder:
    """Write a cell of a plan that is done."""
    recorded = RecordedCell(sweep.cell(planned.name), steps=steps)
    recorded.succeed(ids=(planned.cell_id, planned.config_id))
    return recorded.folder
