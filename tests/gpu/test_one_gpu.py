"""What one GPU is enough for. With two, the long cell in fp8 runs on the first meanwhile."""

import subprocess
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from fakes.gpus import REHEARSES, a_stranger, gpus, needs
from fakes.train_command import LEAN, Finished, Train, wait_for
from fakes.twins import losses_of
from scalewise.config import FP8_CAPABILITY
from scalewise.config.execution import find_compiler
from scalewise.records import SweepFolder, read_device_series, read_heartbeat

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400), pytest.mark.usefixtures("fp8")]

FP8_STEPS = 20
STEPS, STEP_MS = 45, 300
"""Long enough for several readings of the driver's list of processes."""


def no_fp8() -> str | None:
    """Why there can be no fp8 here; None if there can."""
    if REHEARSES or not gpus():
        return "needs an NVIDIA GPU"
    capability = gpus()[0].compute_capability
    if capability is None or capability < FP8_CAPABILITY:
        return f"needs a GPU of compute capability {FP8_CAPABILITY}, found {capability}"
    if find_spec("torchao") is None:
        return "needs torchao"
    return None if find_compiler() else "needs a C++ compiler"


def mask(number: int) -> dict[str, str]:
    """Environment that hides all GPUs but one; nothing in a rehearsal."""
    return {} if REHEARSES else {"CUDA_VISIBLE_DEVICES": str(gpus()[number].index)}


@pytest.fixture(scope="module", autouse=True)
def everything_it_sees(train: Train) -> None:
    """The mask alone decides on GPUs."""
    if not REHEARSES:
        train.always = ()


@pytest.fixture(scope="module")
def fp8(
    train: Train, everything_it_sees: None, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], Finished]:
    """Ends a compiled cell in fp8 on the first GPU. Where that leaves another, it begins now."""
    cwd = tmp_path_factory.mktemp("fp8")

    def begin() -> subprocess.Popen[str]:
        return train.start(
            "precision=fp8", "execution=compile", "model=gpt2_tiny", "dataset=synthetic_tokens",
            "batch_size=32", f"max_steps={FP8_STEPS}", "warmup_steps=5", "log_every_n_steps=1",
            "validation=never", "tracking=none", cwd=cwd, **mask(0),
        )  # fmt: skip

    begun = begin() if no_fp8() is None and len(gpus()) > 1 else None
    return lambda: train.finish(begun or begin(), cwd=cwd)


@needs(1, on_cpu=True)
def test_one_gpu_of_several_is_recorded_as_itself_with_whoever_joins(train: Train) -> None:
    if REHEARSES:
        run = watched(train, lambda: None)
        assert run.status == 0, run.err
        return
    gpu = gpus()[-1]
    with a_stranger(gpu) as stranger:
        run = watched(train, stranger.take)
    assert run.status == 0, run.err
    folder = run.only_cell()
    result = folder.load_result()
    (rank,) = result.ranks
    assert (rank.device.uuid, rank.device.index) == (gpu.uuid, gpu.index)
    assert [device.uuid for device in folder.load_provenance().devices] == [gpu.uuid]
    assert f'"gpus": ["{gpu.uuid}"]' in folder.log_path(0, "out").read_text()
    (path,) = folder.device_series_paths()
    series = read_device_series(path)
    assert [(device.id, device.index) for device in series.devices] == [(gpu.uuid, gpu.index)]
    assert all(set(sample) <= {gpu.uuid} for sample in series.samples)
    assert any(series.values(gpu.uuid, "memory_used_mib"))
    listed = [sample[gpu.uuid].processes for sample in series.samples if gpu.uuid in sample]
    if not any(listed):
        pytest.skip("the driver lists no processes here, as in a container: nobody can be named")
    assert any(gpu.uuid in who for who in result.co_tenants), (result.co_tenants, listed)


def makes_steps(sweep: Path) -> bool:
    if not (sweep / "sweep.json").exists():
        return False
    ((_, folder),) = SweepFolder(sweep).cells()
    beat = read_heartbeat(folder.heartbeat_path(0))
    return beat is not None and beat.step > 2


def watched(train: Train, once_it_trains: Callable[[], None]) -> Finished:
    """A cell of slow steps on the last GPU."""
    before = train.sweeps()
    process = train.start(
        "model._target_=mine.Witness", f"+model.step_ms={STEP_MS}", f"max_steps={STEPS}",
        "warmup_steps=2", "tracking=none", "validation=never", "monitor.interval_s=0.5",
        **mask(-1),
    )  # fmt: skip
    (sweep,) = wait_for(lambda: train.sweeps() - before, "the sweep's folder")
    wait_for(lambda: makes_steps(sweep), "its first steps", 90)
    once_it_trains()
    return train.finish(process, before)


@needs(1)
def test_memory_beyond_the_cap_has_run_out_though_the_gpu_has_more(train: Train) -> None:
    run = train(
        *LEAN, "validation=never", "model=gpt2_tiny", "dataset=synthetic_tokens",
        "dataset.train_samples=16384", "batch_size=8192", "hardware.memory_cap_gib=1", **mask(-1),
    )  # fmt: skip
    assert run.status == 1, run.err
    (attempt,) = run.only_cell().attempts()
    assert (attempt.outcome, attempt.cause) == ("failed", "oom")
    assert "batch_size=4096 accumulate_grad_batches=2" in attempt.message


@pytest.mark.skipif(no_fp8() is not None, reason=str(no_fp8()))
def test_fp8_learns_and_says_which_layers_it_ran_in(fp8: Callable[[], Finished]) -> None:
    run = fp8()
    assert run.status == 0, run.err
    folder = run.only_cell()
    losses = [loss for loss in losses_of(folder) if loss is not None]
    assert len(losses) == FP8_STEPS
    assert losses[-1] < 0.95 * losses[0]
    (rank,) = folder.load_result().ranks
    assert any(name.endswith("feed_forward.0") for name in rank.fp8.fp8_layers), rank.fp8
    assert rank.execution is not None and rank.execution.ran == "compile"
