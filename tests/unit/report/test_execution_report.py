"""A run that did not execute as asked is said aloud in the report."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from scalewise.analysis.runs import Configuration
from scalewise.records import ExecutionRecord
from scalewise.report.execution import fallbacks


def configuration(*executed: ExecutionRecord | None) -> Configuration:
    runs = [
        SimpleNamespace(cell=SimpleNamespace(result=SimpleNamespace(ranks=[_rank(record)])))
        for record in executed
    ]
    return cast(Configuration, SimpleNamespace(label="medium x1", runs=runs))


def _rank(record: ExecutionRecord | None) -> Any:
    return SimpleNamespace(execution=record)


def test_a_fallback_is_said_with_its_reason_and_how_often() -> None:
    replayed = ExecutionRecord("cudagraph", "cudagraph")
    eager = ExecutionRecord("cudagraph", "eager", "the step waits for the device at m.py:3")
    assert list(fallbacks(configuration(eager, eager))) == [
        "medium x1: execution=cudagraph was asked for, but the steps ran eager: the step waits for "
        "the device at m.py:3"
    ]
    assert next(iter(fallbacks(configuration(replayed, eager)))).endswith("(in 1 of 2 runs)")


def test_nothing_is_said_of_runs_as_asked_or_of_older_records() -> None:
    assert list(fallbacks(configuration(ExecutionRecord("eager", "eager"), None))) == []
