"""What strategies, precision and execution refuse of a cell: the key, and what was found."""

from typing import Any

import pytest

from fakes.small_fit import composed_cell
from scalewise.config import ConfigError, ExecutionConfig

CPU = "hardware=cpu"


@pytest.mark.parametrize(
    ("overrides", "begin"),
    [
        # data parallelism
        ("ddp strategy.static_graph=true strategy.find_unused_parameters=true",
         "strategy.find_unused_parameters: found true with static_graph=true"),
        ("local_sgd precision=fp16-mixed", "precision: found fp16-mixed with strategy=local_sgd"),
        ("task_parallel strategy.devices=1", "strategy.devices: found 1 with strategy=task_par"),
        ("heterogeneous strategy.shares=[0.6,0.5]", "strategy.shares: found [0.6, 0.5]; allowed"),
        ("heterogeneous", "strategy.shares: found []; allowed"),
        ("heterogeneous strategy.shares=[0.6,0.4] strategy.devices=3",
         "strategy.shares: found 2 with devices=3"),
        ("heterogeneous strategy.shares=[1.0] strategy.compression=bf16",
         "strategy.compression: found bf16 with strat"),
        ("heterogeneous strategy.devices=3 strategy.shares=[0.5,0.3,0.2] batch_size=2",
         "batch_size: found 2 on 3 devices"),
        ("auto strategy.probe_warmup_steps=60",
         "strategy.probe_warmup_steps: found 60 with probe_steps=60; allowed: 0 to 59"),
        ("auto strategy.candidates.ddp.bucket_cap_mb=0",
         "strategy.candidates.ddp.bucket_cap_mb: found 0; allowed: above 0"),
        # divided models
        ("fsdp optimizer=adafactor", "optimizer: found adafactor with strategy=fsdp"),
        ("fsdp precision=fp16-mixed", "precision: found fp16-mixed with strategy=fsdp"),
        ("pipeline model=lstm dataset=tabular_windows",
         "model: found Recurrent with strategy=pipeline"),
        ("fsdp model=lstm dataset=tabular_windows", "model: found Recurrent with strategy=fsdp"),
        ("pipeline accumulate_grad_batches=2", "accumulate_grad_batches: found 2 with strategy=p"),
        ("pipeline strategy.microbatches=3 strategy.devices=4",
         "strategy.microbatches: found 3 with 4 stages; allowed: 4 or more"),
        ("gpipe strategy.microbatches=3 strategy.devices=4",
         "strategy.microbatches: found 3 with 128 samples"),
        # execution and loaders
        ("single +execution.steps_per_batch=2",
         "execution.steps_per_batch: found 2 with execution=eager"),
        ("single +execution.compiled=true", "execution.compiled: found true with execution=eager"),
        ("single execution=cudagraph execution.compiled=true "
         "+execution.compile_mode=reduce-overhead",
         "execution.compile_mode: found reduce-overhead with execution=cudagraph"),
        ("single dataset.loader.num_workers=2 dataset.loader.device_resident=true",
         "dataset.loader.num_workers: found 2 with device_resident=true"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_in_one_line(overrides: str, begin: str) -> None:
    strategy, *others = overrides.split()
    on = () if strategy == "ddp" else (CPU,)
    with pytest.raises(ConfigError) as refused:
        composed_cell(f"strategy={strategy}", *on, *others)
    assert str(refused.value).startswith(begin)
    assert "allowed: " in str(refused.value) and "\n" not in str(refused.value)


def config(kind: Any) -> ExecutionConfig:
    return ExecutionConfig(kind, kind)


def test_only_captures_that_communicate_change_the_ranks_environment() -> None:
    assert config("cudagraph").rank_environment(1) == config("eager").rank_environment(2) == {}
    variables = config("cudagraph").rank_environment(2)
    assert variables["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"
    # Steps that prepare are never timed.
    assert config("eager").preparing_steps(8) == 0
    assert [config("cudagraph").preparing_steps(world) for world in (1, 2)] == [5, 13]
    assert config("compile").preparing_steps(2) == 3
