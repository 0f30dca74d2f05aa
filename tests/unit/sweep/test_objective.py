"""The answer to a sweeper for a cell of several ranks, and advice for one without memory."""

import re
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import pytest
from omegaconf import OmegaConf

from fakes.recorded import RecordedCell, plan_sweep, rank_summary
from fakes.requests import asked
from fakes.settings import SETTINGS, SLOT, job_in
from scalewise.config.errors import failure_kind
from scalewise.records import CellFolder, Ending, RankSummary, RehearsalRecord
from scalewise.supervisor.supervisor import Supervisor
from scalewise.sweep import memory_advice
from scalewise.sweep.launcher import _check_objective
from scalewise.sweep.running_cells import measure_objective


def summary(rank: int, samples_fed: int, train_loss: float) -> RankSummary:
    return rank_summary(
        rank, SLOT, 1, samples_fed, metrics={"train_loss": train_loss}, metric_rows=1
    )


def ended(tmp_path: Path, *summaries: RankSummary, **fed: int | None) -> CellFolder:
    """A cell of two ranks that leave these behind, recorded."""
    folder = CellFolder(tmp_path / "sweep" / "cell")
    for one in summaries:
        folder.save_rank(replace(one, **fed))
    one = Supervisor(job_in(folder.path, devices=2), cast(Any, None))
    one.started_at, one.began_s = 0.0, time.monotonic() - 70.0
    assert one.record_result().outcome == "done"
    return folder


def test_the_objective_is_of_all_ranks_and_one_not_measured_is_said_once(tmp_path: Path) -> None:
    folder = ended(tmp_path, summary(0, 300, 2.0), summary(1, 100, 1.0))
    _, objective, _ = measure_objective(folder, "id", "train_loss", was_reported=False)
    assert objective == 1.75
    ending, objective, _ = measure_objective(folder, "id", "f1", was_reported=False)
    assert (objective, "'f1'" in ending.message) == (None, True)
    ending, *_ = measure_objective(folder, "id", "train_los", was_reported=False)
    assert "(did you mean 'train_loss'?)" in ending.message
    ending, _, _ = measure_objective(folder, "id", "f1", was_reported=True)
    assert ending.message == ""
    done = plan_sweep(tmp_path / "steps", ["done"]).cell("done")
    RecordedCell(done, steps=100).succeed()
    _, *both = measure_objective(done, "id-done", "global_samples_per_s", was_reported=True)
    assert both == [pytest.approx(320.0)] * 2
    for was_reported, shown in ((False, pytest.approx(320.0)), (True, None)):
        _, *both = measure_objective(done, "id-done", "val_accuracy", was_reported=was_reported)
        assert both == [0.9, shown]


def test_what_a_script_or_module_may_log_itself_is_no_search_in_vain() -> None:
    of_script = "experiment=script script.command=ls sweep.objective=val_loss"
    of_module = "model._target_=mine.Net dataset=tabular validation=never sweep.objective=val/acc"
    _check_objective(OmegaConf.create(), [asked(*one.split()) for one in (of_script, of_module)])


@pytest.mark.parametrize("objective", ["train_loss", "f1", "global_samples_per_s"])
def test_a_rehearsal_has_no_objective(tmp_path: Path, objective: str) -> None:
    alone = replace(summary(0, 300, 2.0), rehearsed=RehearsalRecord(8, "pcie", "a doctor"))
    folder = ended(tmp_path, alone, summary(1, 100, 1.0))
    ending, value, rate = measure_objective(folder, "id", objective, was_reported=False)
    assert (ending.outcome, ending.message, value, rate) == ("done", "", None, None)


@pytest.mark.parametrize(
    ("largest", "usual", "sizes"), [(None, None, (32, 32)), (8, None, (8, 16)), (9, 8, (8, 16))]
)
def test_batch_sizes_are_those_that_were_fed_where_the_ranks_tell(
    tmp_path: Path, largest: int | None, usual: int | None, sizes: tuple[int, int]
) -> None:
    told = {"largest_step_samples": largest, "usual_step_samples": usual}
    result = ended(tmp_path, summary(0, 300, 2.0), summary(1, 100, 1.0), **told).load_result()
    assert ((result.per_device_batch_size, result.global_batch_size), result.models) == (sizes, 1)
    assert result.elapsed_s == pytest.approx(70, abs=10), "not by the time of day, from 1970 on"


@pytest.mark.parametrize(("without", "told"), [(1, False), (0, True)])
def test_a_run_that_trained_nothing_is_no_fastest_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without: int, told: bool
) -> None:
    figures = SimpleNamespace(throughput=SimpleNamespace(global_samples_per_s=1000.0))
    steps = SimpleNamespace(figures=figures)
    monkeypatch.setattr("scalewise.analysis.read_cell_steps", lambda folder, result: steps)
    ranks = [replace(summary(r, 100, 1.0), steps_without_loss=without) for r in range(2)]
    ending, objective, rate = measure_objective(
        ended(tmp_path, *ranks), "id", "global_samples_per_s", was_reported=False
    )
    assert (objective == 1000.0) is told
    assert ("1 of 1 steps trained nothing" in ending.message) is not told
    assert rate == 1000.0


# Who ran out of memory reads what to change, and nothing that would be refused.
ON_TWO = "dataset=stdlib precision=bf16-mixed strategy=ddp strategy.devices=2"
MORE = "execution.activation_checkpointing=true strategy=fsdp"


@pytest.mark.parametrize(
    ("words", "devices", "told", "said"),
    [
        ("dataset=stdlib batch_size=8", 1,
         f"batch_size=4 accumulate_grad_batches=2 precision=bf16-mixed {MORE}",
         "(as many samples a step, 4 at once on a device)"),
        (f"{ON_TWO} batch_size=12 accumulate_grad_batches=2", 2,
         f"batch_size=6 accumulate_grad_batches=4 {MORE}", "3 at once"),
        (f"{ON_TWO} batch_size=12 scaling=weak", 2,
         f"batch_size=6 accumulate_grad_batches=2 {MORE}", "6 at once"),
        (f"{ON_TWO} batch_size=10", 2, MORE, "a smaller batch_size (10 now, 5 a device)"),
        ("dataset=stdlib precision=bf16-mixed batch_size=1", 1, MORE, ""),
        ("dataset=stdlib precision=bf16-mixed strategy=fsdp "
         "execution.activation_checkpointing=true", 2,
         "batch_size=64 accumulate_grad_batches=2", "32 at once"),
    ],
)  # fmt: skip
def test_what_needs_less_memory_and_is_not_set_already_is_advised(
    words: str, devices: int, told: str, said: str
) -> None:
    advice = memory_advice(asked("model=gpt2_tiny", *words.split()).cell, devices)
    assert re.findall(r"[\w.]+=[\w-]+", advice) == told.split()
    assert said in advice
    assert ("a smaller batch_size" in advice) is ("smaller" in said)


@pytest.mark.parametrize(("cause", "told"), [("oom", True), ("signal", False)])
def test_only_of_memory_that_ran_out_is_it_said(
    tmp_path: Path, cause: Literal["oom", "signal"], told: bool
) -> None:
    job = job_in(tmp_path, replace(SETTINGS, memory_advice="less of it"))
    one = Supervisor(job, cast(Any, None))
    outcome = one.record_failure(Ending("failed", cause, "rank 0 was ended", 0, -9))
    (attempt,) = one.folder.attempts()
    assert attempt.message == outcome.message
    assert ("less of it" in attempt.message) is told
    assert (attempt.cause, attempt.rank) == (cause, 0)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_whoever_says_it_memory_that_ran_out_is_told_apart(error: Exception) -> None:
    assert (failure_kind(error), failure_kind(RuntimeError("memory"))) == ("oom", "exception")
