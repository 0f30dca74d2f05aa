"""What an experiment leaves on disk: the only code that reads or writes it.

Everything scalewise says is computed from these files, so they hold raw values, name their unit
and scope, carry a schema version, and survive being cut off at any byte.

================== =============================================== ==========================
file (in a cell)   what                                            written by
================== =============================================== ==========================
config.yaml        the resolved configuration                      the sweep, before the start
provenance.json    code, versions, devices, environment            rank 0, at the start
steps/rank<r>.bin  one fixed-width row a step                      every rank, while training
metrics/rank<r>.   loss, metrics and learning rate over steps      every rank, while training
audit/rank<r>.npz  which samples the first epoch fed, by index     every rank, at the end
ranks/rank<r>.json what this rank did in all                       every rank, at the end
profile/rank<r>.   what a profiler saw, in cells made for it    every rank, after its window
ranks/rank<r>.err  what this rank died of                          a rank that fails
gpu/<host>.jsonl   devices (or processes) sampled over time        the sampler of the host
heartbeat/rank<r>  progress, overwritten in place                  every rank, every step
logs/rank<r>.*     stdout and stderr                               every rank
running.json       a try under way; touched while it lives         the supervisor
attempts/<n>.json  a try that did not succeed, and why             the supervisor
tracking.json      what was handed to the trackers and read back   the tracking mirror
result.json        the cell is done                                the supervisor, last
================== =============================================== ==========================
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scalewise.records.cell import CellFolder
    from scalewise.records.communication import CommunicationRecord
    from scalewise.records.decision import (
        CandidateEvidence,
        StrategyDecision,
        ThresholdRule,
        load_decision,
        save_decision,
    )
    from scalewise.records.device_series import (
        Alert,
        DeviceProcess,
        DeviceSample,
        DeviceSeries,
        DeviceSeriesWriter,
        SampledDevice,
        read_device_series,
    )
    from scalewise.records.execution import ExecutionRecord
    from scalewise.records.files import SCHEMA_VERSION, RecordError
    from scalewise.records.fp8 import Fp8Record
    from scalewise.records.heartbeat import Heartbeat, HeartbeatWriter, read_heartbeat
    from scalewise.records.latest import LatestSample, read_latest_sample
    from scalewise.records.lines import finite_or_none, follow_lines
    from scalewise.records.metric_rows import MetricRow, MetricsWriter, read_metrics
    from scalewise.records.pipeline import PipelineRecord
    from scalewise.records.provenance import DeviceInfo, Provenance
    from scalewise.records.rank import RankError, RankSummary
    from scalewise.records.result import (
        Attempt,
        Cause,
        CellResult,
        RunningAttempt,
        TrackerState,
        TrackingRecord,
    )
    from scalewise.records.shards import ShardIndices, read_shard, write_shard
    from scalewise.records.steps import (
        PHASES,
        STEP_DTYPE,
        WARMUP,
        StepSeries,
        StepWriter,
        read_steps,
    )
    from scalewise.records.sweep import PlannedCell, SweepFolder, SweepPlan

__all__ = [
    "PHASES",
    "SCHEMA_VERSION",
    "STEP_DTYPE",
    "WARMUP",
    "Alert",
    "Attempt",
    "Cause",
    "CandidateEvidence",
    "CellFolder",
    "CellResult",
    "CommunicationRecord",
    "DeviceInfo",
    "DeviceProcess",
    "DeviceSample",
    "DeviceSeries",
    "DeviceSeriesWriter",
    "ExecutionRecord",
    "Fp8Record",
    "Heartbeat",
    "HeartbeatWriter",
    "PipelineRecord",
    "LatestSample",
    "MetricRow",
    "MetricsWriter",
    "PlannedCell",
    "Provenance",
    "RankError",
    "RankSummary",
    "RecordError",
    "RunningAttempt",
    "SampledDevice",
    "ShardIndices",
    "StepSeries",
    "StepWriter",
    "StrategyDecision",
    "SweepFolder",
    "SweepPlan",
    "ThresholdRule",
    "TrackerState",
    "TrackingRecord",
    "finite_or_none",
    "follow_lines",
    "load_decision",
    "read_device_series",
    "read_heartbeat",
    "read_latest_sample",
    "read_metrics",
    "read_shard",
    "read_steps",
    "save_decision",
    "write_shard",
]

_HOMES = {
    "cell": "CellFolder",
    "communication": "CommunicationRecord",
    "decision": "CandidateEvidence StrategyDecision ThresholdRule load_decision save_decision",
    "device_series": "Alert DeviceProcess DeviceSample "
    "DeviceSeries DeviceSeriesWriter SampledDevice read_device_series",
    "execution": "ExecutionRecord",
    "files": "SCHEMA_VERSION RecordError",
    "fp8": "Fp8Record",
    "heartbeat": "Heartbeat HeartbeatWriter read_heartbeat",
    "latest": "LatestSample read_latest_sample",
    "lines": "finite_or_none follow_lines",
    "metric_rows": "MetricRow MetricsWriter read_metrics",
    "pipeline": "PipelineRecord",
    "provenance": "DeviceInfo Provenance",
    "rank": "RankError RankSummary",
    "result": "Attempt Cause CellResult RunningAttempt TrackerState TrackingRecord",
    "shards": "ShardIndices read_shard write_shard",
    "steps": "PHASES STEP_DTYPE WARMUP StepSeries StepWriter read_steps",
    "sweep": "PlannedCell SweepFolder SweepPlan",
}
"""Who imports one record need not import all of them, and NumPy with them."""


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names.split():
            value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
