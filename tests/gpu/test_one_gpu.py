"""What one GPU is enough for."""

import json
from collections.abc import Callable

import numpy as np
import pytest

from fakes.gpus import REHEARSES, a_stranger, gpus, needs
from fakes.train_command import LEAN, Finished, Train
from scalewise.records import read_device_series, read_steps

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]

STEPS, STEP_MS = 45, 300
"""Long enough for several readings of the driver's list of processes."""


def mask(number: int) -> dict[str, str]:
    """Environment that hides all GPUs but one; nothing in a rehearsal."""
    return {} if REHEARSES else {"CUDA_VISIBLE_DEVICES": str(gpus()[number].index)}


@pytest.fixture(scope="module", autouse=True)
def everything_it_sees(train: Train) -> None:
    """The mask alone decides on GPUs."""
    if not REHEARSES:
        train.always = ()


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


def watched(train: Train, once_it_trains: Callable[[], None]) -> Finished:
    """A cell of slow steps on the last GPU."""
    before = train.sweeps()
    process = train.start(
        "model._target_=lit.Witness", "dataset=tabular", f"+model.step_ms={STEP_MS}",
        f"max_steps={STEPS}", "warmup_steps=2", "tracking=none", "validation=never",
        "monitor.interval_s=0.5", **mask(-1),
    )  # fmt: skip
    train.training(before, beyond=2)
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


DELAYS_MS = {
    "data_wait": 1.0, "h2d": 1.4, "forward": 1.8, "backward": 2.2, "optimizer": 2.6, "other": 3.0,
}  # fmt: skip
"""In every second step, on top of as much in each: so the GPU never waits for its host."""


@needs(1)
def test_a_delay_of_the_gpu_appears_in_its_phase(train: Train) -> None:
    """On its timeline, within 10 %."""
    delays = [f"+model.{phase}_ms={ms}" for phase, ms in DELAYS_MS.items()]
    run = train(
        "strategy=single", "model._target_=lit.SpinModule", *delays,
        "dataset._target_=lit.SpinData", "dataset.loader.num_workers=0", "batch_size=16",
        "max_steps=120", "warmup_steps=20", "validation=never", "tracking=none",
        "monitor.devices=false", **mask(-1),
    )  # fmt: skip
    assert run.status == 0, run.err
    told = json.loads((train.cwd / "spins.json").read_text())
    steps = read_steps(run.only_cell().steps_path(0), 0).timed()
    number = steps.rows["step"]
    for phase in DELAYS_MS:
        # What comes after a step's last mark opens the next step.
        twice = (number - (phase == "other")) % 2 == 1
        spun = np.array(told[phase])[number - (phase == "other")]
        found = steps.column(phase, "device")
        asked_ms, found_ms = (np.median(ms[twice]) - np.median(ms[~twice]) for ms in (spun, found))
        assert found_ms == pytest.approx(asked_ms, rel=0.1), phase
