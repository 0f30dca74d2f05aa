"""A delay put into a phase of a step appears in that phase on the GPU's timeline, within 10 %."""

import json

import numpy as np
import pytest

from fakes.gpus import needs
from fakes.train_command import Train
from scalewise.records import read_steps

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]

DELAYS_MS = {
    "data_wait": 1.0, "h2d": 1.4, "forward": 1.8, "backward": 2.2, "optimizer": 2.6, "other": 3.0,
}  # fmt: skip
"""In every second step, on top of as much in each: so the GPU never waits for its host."""
STEPS = 120


@needs(1)
def test_a_delay_of_the_gpu_appears_in_its_phase(train: Train) -> None:
    delays = [f"+model.{phase}_ms={ms}" for phase, ms in DELAYS_MS.items()]
    run = train(
        "strategy=single", "model._target_=mine.SpinModule", *delays,
        "dataset._target_=mine.SpinData", "dataset.loader.num_workers=0", "batch_size=16",
        f"max_steps={STEPS}", "warmup_steps=20", "validation=never", "tracking=none",
        "monitor.devices=false",
    )  # fmt: skip
    assert run.status == 0, run.err
    folder = run.only_cell()
    told = json.loads((train.cwd / "spins.json").read_text())
    steps = read_steps(folder.steps_path(0), 0).timed()
    number = steps.rows["step"]
    for phase in DELAYS_MS:
        # What comes after a step's last mark opens the next step.
        twice = (number - (phase == "other")) % 2 == 1
        spun = np.array(told[phase])[number - (phase == "other")]
        found = steps.column(phase, "device")
        asked_ms, found_ms = (np.median(ms[twice]) - np.median(ms[~twice]) for ms in (spun, found))
        assert found_ms == pytest.approx(asked_ms, rel=0.1), phase
