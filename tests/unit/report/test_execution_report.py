"""A run that did not execute as asked is said aloud in the report."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from scalewise.report.execution import fallbacks, fp8_layers

from scalewise.analysis.runs import Configuration
from scalewise.records import ExecutionRecord, Fp8Record


def configuration(*executed: ExecutionRecord | None, fp8: Fp8Record | None = None) -> Configuration:
    runs = [
        SimpleNamespace(cell=SimpleNamespace(result=SimpleNamespace(ranks=[_rank(record, fp8)])))
        for record in executed
    ]
    return cast(Configuration, SimpleNamespace(label="medium x1", runs=runs))


def _rank(record: ExecutionRecord | None, fp8: Fp8Record | None) -> Any:
    return SimpleNamespace(execution=record, fp8=fp8)


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


def test_layers_that_did_not_run_in_fp8_are_named() -> None:
    partly = configuration(None, fp8=Fp8Record(("a", "b"), ("c", "d", "e", "f")))
    assert list(fp8_layers(partly)) == [
        "medium x1: 2 of 6 linear layers ran in fp8: not c, d, e and 1 more"
    ]
    whole = configuration(None, fp8=Fp8Record(("a", "b"), ()))
    assert list(fp8_layers(whole)) == ["medium x1: 2 of 2 linear layers ran in fp8"]
    assert list(fp8_layers(configuration(None))) == []
