"""What ``scalewise find-batch`` refuses before it starts a process, and what it says at the end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from scalewise.cli import main
from scalewise.records import BatchSearchRecord, BatchTrial
from scalewise.sweep.launcher import as_text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["modle=medium"], "modle"),
        (["strategy=fsdp", "hardware=cpu"], "strategy=fsdp; allowed: a number, or strategy=single"),
        (["execution=cudagraph", "hardware=cpu"], "found cudagraph, which needs a GPU"),
        (
            ["strategy=ddp", "strategy.devices=64", "hardware=cpu"],
            "strategy.devices: found 64 with",
        ),
        (["--first", "0"], "batch_search.first: found 0"),
        (["--most", "many"], "batch_search.max: found 'many'; allowed: an integer"),
    ],
)
def test_wrong_use_is_one_line_and_status_2(
    words: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["find-batch", *words]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.startswith("scalewise find-batch: ") and told.count("\n") == 1


def test_the_answer_says_what_to_type_and_who_ran_out_of_memory() -> None:
    trials = (
        BatchTrial(32, "fits", (), 900.0, 12.5),
        BatchTrial(64, "oom", (1,), None, None),
    )
    found = BatchSearchRecord(30, 60, 32, "memory", 0.05, 2, "a GPU", trials, {}, 1000.0)
    text = as_text(found, "strong")
    assert "64 oom rank 1" in text
    assert text.endswith(
        "batch_size=60 with scaling=strong was found by the search: 30 samples on each of 2 x a "
        "GPU (32 still fit; 5% of that is kept free); 32 took 900 of 1,000 MiB a device\n"
    )
    assert "batch_size=30 with scaling=weak" in as_text(found, "weak")


def test_a_search_that_ended_at_its_bound_says_which_and_how_to_lift_it() -> None:
    trials = (BatchTrial(64, "fits", (), 900.0, 12.5),)
    found = BatchSearchRecord(64, 128, 64, "max_batch", 0.0, 2, "a GPU", trials, {}, 1000.0)
    text = as_text(found, "strong")
    assert "the largest tried, for batch_search.max=64: more may fit" in text
    assert "by --most N" in text
    ended = as_text(replace(found, limited_by="data"), "strong")
    assert "the training set has no more for each device" in ended
    assert "batch_search.max" not in ended
