"""What is to be tried against a loss: typed as keys that exist, by what was measured."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from fakes.kept_sweep import kept
from fakes.recorded import Spec, analysed, edit_ranks, with_devices, write_sweep
from fakes.requests import composer
from fakes.sections import lines_of
from scalewise.analysis import (
    CAUSE_WORDS,
    Configuration,
    analyse,
    load_sweep,
    remedy,
    work_remedy,
)
from scalewise.analysis.loss_budget import LossCause, LostTime


def configuration(path: Path, **config: object) -> Configuration:
    (found,) = analysed(path, Spec(config=config)).measured
    return found


FOR_KEY = {
    "strategy.compression": "strategy=ddp", "strategy.no_sync": "strategy=ddp",
    "strategy.microbatches": "strategy=pipeline", "profile.trace": "profile.window=true",
}  # fmt: skip
"""What a key needs beside it."""


def compose_typed(text: str) -> list[str]:
    """Every key and ``key=value`` in a remedy. Raises where hydra knows no such key or option."""
    keys = re.findall(r"\b[a-z]+(?:[._][a-z]+)+\b(?:=[\w\-]+)?|\b[a-z]+=[\w\-]+", text)
    for typed in keys:
        key, _, value = typed.partition("=")
        overrides = [FOR_KEY[key]] if key in FOR_KEY else []
        overrides += [typed] if value else []
        plain = composer().plain(overrides, 0)
        for name in key.split("."):
            assert name in plain, typed
            plain = plain[name]
    return keys


def test_every_cause_has_words() -> None:
    assert set(CAUSE_WORDS) == set(get_args(LossCause)) - {"untimed"}


@pytest.mark.parametrize("cause", CAUSE_WORDS)
def test_every_cause_has_a_remedy_whose_keys_exist(tmp_path: Path, cause: LossCause) -> None:
    config = configuration(tmp_path)
    for rank in (None, 1):
        found = remedy(config, LostTime(cause, 1.0, 0.2, "", rank))
        assert compose_typed(found.words) or cause in ("contention", "long_steps", "clocks")
        assert found.overrides or found.deed
        for override in found.overrides:
            assert compose_typed(override) == [override]


def test_a_late_host_is_first_taken_out_of_the_step(tmp_path: Path) -> None:
    found = remedy(configuration(tmp_path), LostTime("host_late", 1.0, 0.2, "", None))
    assert found.overrides[0] == "execution=cudagraph"
    assert compose_typed(found.words) == ["execution=cudagraph", "batch_size"]


BUSY = {"sm_activity_percent": 90.0, "tensor_activity_percent": 70.0, "dram_activity_percent": 30.0}
BF16, COMPILE = {"precision": {"name": "bf16-mixed"}}, {"execution": {"name": "compile"}}


@pytest.mark.parametrize(
    ("config", "activity", "keys"),
    [
        ({}, {}, ["batch_size"]),
        ({}, BUSY, ["batch_size"]),
        ({}, {"sm_activity_percent": 40.0}, ["batch_size"]),
        ({}, {"tensor_activity_percent": 10.0}, ["precision=bf16-mixed", "execution=compile"]),
        (BF16, {"tensor_activity_percent": 10.0}, ["execution=compile"]),
        (COMPILE, {"dram_activity_percent": 70.0}, ["precision=bf16-mixed"]),
        ({**BF16, **COMPILE}, {"dram_activity_percent": 70.0}, ["batch_size"]),
    ],
)
def test_work_is_made_shorter_by_what_is_not_chosen_already(
    tmp_path: Path, config: dict[str, object], activity: dict[str, float], keys: list[str]
) -> None:
    measured = configuration(tmp_path, **config)
    run = with_devices(measured.runs[0], **{**BUSY, **activity} if activity else {})
    assert compose_typed(work_remedy(replace(measured, runs=(run,))).words) == keys


def test_an_allocator_that_tried_again_is_a_doubt_with_what_helps(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, [replace(Spec(), kind="cpu")])
    edit_ranks(path, lambda rank: rank.update(allocation_retries=3))
    (line,) = [line for line in lines_of(path, "doubts") if "rank 0: 3 times" in line]
    compose_typed(line.partition(";")[2])


@pytest.mark.parametrize(
    ("sweep", "label", "told"),
    [
        ("h200x2_strategies", "gpt2 fsdp x2", True),
        ("h200x2_strategies", "gpt2 ddp x2", False),
        ("h200x2_medium_cudagraph", "medium ddp x2", False),
    ],
)
def test_only_who_hides_its_collectives_in_timed_phases_is_told_of_ddp(
    sweep: str, label: str, told: bool
) -> None:
    measured = analyse(load_sweep(kept(sweep))).measured
    (config,) = (one for one in measured if one.label == label)
    assert (work_remedy(config).overrides[:1] == ("strategy=ddp",)) is told
