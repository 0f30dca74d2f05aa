"""Who ran out of memory reads what to change, and nothing that would be refused."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from fakes.requests import asked
from fakes.settings import SETTINGS
from scalewise.config.errors import failure_kind
from scalewise.records import CellFolder, DeviceInfo, Ending, PlannedCell
from scalewise.supervisor import Job, Origin
from scalewise.supervisor.attempt import Try
from scalewise.sweep import memory_advice


def advice(*overrides: str, devices: int = 1) -> str:
    return memory_advice(asked("model=gpt2_tiny", *overrides).cell, devices)


GPT2 = ("dataset=stdlib", "precision=bf16-mixed")


def test_a_small_batch_too_can_be_halved() -> None:
    said = advice("dataset=stdlib", "batch_size=8")
    assert "batch_size=4 accumulate_grad_batches=2 (as many samples a step, 4 at once" in said
    for remedy in ("precision=bf16-mixed", "strategy=fsdp"):
        assert remedy in said
    assert "execution.activation_checkpointing=true" in said


def test_of_all_devices_together_and_of_each() -> None:
    both = ("strategy=ddp", "strategy.devices=2", "batch_size=12")
    said = advice(*GPT2, *both, "accumulate_grad_batches=2", devices=2)
    assert "batch_size=6 accumulate_grad_batches=4 (as many samples a step, 3 at once" in said
    assert "batch_size=6 accumulate_grad_batches=2 " in advice(*GPT2, *both, "scaling=weak",
                                                               devices=2)  # fmt: skip
    odd = advice(*GPT2, "strategy=ddp", "strategy.devices=2", "batch_size=10", devices=2)
    assert "a smaller batch_size (10 now, 5 a device)" in odd


def test_one_sample_cannot_be_divided() -> None:
    said = advice(*GPT2, "batch_size=1")
    assert "batch_size" not in said
    assert "strategy=fsdp" in said


def test_what_is_set_already_is_not_advised() -> None:
    said = advice(*GPT2, "strategy=fsdp", "execution.activation_checkpointing=true", devices=2)
    assert said.count("=") == 2, said
    assert "batch_size=64 accumulate_grad_batches=2" in said


@pytest.mark.parametrize(("cause", "told"), [("oom", True), ("signal", False)])
def test_only_of_memory_that_ran_out_is_it_said(
    tmp_path: Path, cause: Literal["oom", "signal"], told: bool
) -> None:
    settings = replace(SETTINGS, memory_advice="less of it")
    planned = PlannedCell("id", "config", "cell", (), 0, 1)
    job = Job(str(tmp_path), planned, settings, (DeviceInfo("cpu", "p"),), Origin(".", (), ()))
    only = Try(job, CellFolder(tmp_path), 1, 0.0, 0.0)
    outcome = only.record_failure(Ending("failed", cause, "rank 0 was ended", 0, -9))
    (attempt,) = only.folder.attempts()
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
    assert failure_kind(error) == "oom"
    assert failure_kind(RuntimeError("memory")) == "exception"
