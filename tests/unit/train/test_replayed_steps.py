"""Several steps a batch, replayed: the loop around a CUDA graph, with a graph that is none.

What a graph computes is CUDA's; what a step has besides (counters, records, stops, schedules,
checkpoints, fall-backs) is ours, and is the same with a stand-in that does the work again.
"""

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from warnings import WarningMessage

import numpy as np
import pytest
import torch
from pytorch_lightning.callbacks import Timer
from torch import Tensor, nn

from fakes.small_fit import small_trainer
from scalewise.config import DEFAULT_PROFILE, ConfigError, LoaderConfig, ProfileConfig
from scalewise.datasets.contract import TensorPairs
from scalewise.models.mlp import Mlp
from scalewise.records import (
    WARMUP,
    CellFolder,
    DeviceInfo,
    load_profiles,
    read_metrics,
    read_shard,
    read_steps,
)
from scalewise.train import RankContext, length
from scalewise.train.data import GlobalBatchSampler, make_loader
from scalewise.train.execution import ExperimentModule, replay, trim
from scalewise.train.execution.cudagraph import CaptureError, where_it_waits
from scalewise.train.execution.replay import ReplayedSteps
from scalewise.train.length import RunLength
from scalewise.train.recording import BatchSizes, CellRecorder, planned_steps

pytestmark = pytest.mark.filterwarnings(
    # Lightning's advice: workers, srun, a validation set.
    "ignore::lightning_fabric.utilities.warnings.PossibleUserWarning",
    "ignore:.*isinstance.treespec",
)
SIZE, BATCH, EAGER = 103, 8, 3
STEPS_AN_EPOCH = SIZE // BATCH


class HostGraph:
    """Records by remembering what to do, and replays by doing it."""

    def __init__(self, fails: bool, unseen: Callable[[], AbstractContextManager[None]]) -> None:
        self._fails = fails
        self._unseen = unseen
        self._loss = torch.zeros(())
        self._work: Callable[[], Tensor] | None = None

    def capture(self, work: Callable[[], Tensor]) -> Tensor:
        if self._fails:
            raise CaptureError("RuntimeError: operation not permitted")
        self._work = work
        return self._loss

    def replay(self) -> None:
        assert self._work is not None
        with self._unseen():  # a real replay runs no Python, so nothing could be marked
            self._loss.copy_(self._work())


class HostCapture:
    unseen: Callable[[], AbstractContextManager[None]]

    def __init__(self, fails: bool = False, waits: str | None = None) -> None:
        self.fails = fails
        self.waits = waits
        self.made, self.awaited = itertools.count(), list[int]()

    def graph(self) -> HostGraph:
        return HostGraph(self.fails, self.unseen)

    def watch(self, step: Callable[[], Tensor]) -> tuple[Tensor, str | None]:
        return step(), self.waits

    def marker(self) -> SimpleNamespace:
        return SimpleNamespace(synchronize=partial(self.awaited.append, next(self.made)))


@pytest.mark.parametrize(
    ("places", "waits"),
    # In metrics.py the recording thread reads a loss.
    [([], None), (["/x/scalewise/train/recording/metrics.py"], None),
     (["/x/scalewise/train/recording/metrics.py", "/home/me/net.py"], "net.py:7")],
)  # fmt: skip
def test_a_step_waits_not_where_the_recording_does(places: list[str], waits: str | None) -> None:
    said = UserWarning("called a synchronizing CUDA operation")
    told = where_it_waits([WarningMessage(said, UserWarning, place, 7) for place in places])
    assert (told or "").split(" (")[0].rpartition(" ")[2] == (waits or "")


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-2, fused=True)


class Run:
    """One fit, replayed or (``device`` None) step by step."""

    def __init__(
        self, folder: Path, device: HostCapture | None, steps_per_batch: int = 4,
        optimizer: Callable[[Any], torch.optim.Optimizer] = adam, network: nn.Module | None = None,
        min_time_s: float | None = None, profile: ProfileConfig = DEFAULT_PROFILE, **limits: Any,
    ) -> None:  # fmt: skip
        torch.manual_seed(0)
        data = TensorPairs(torch.randn(SIZE, 5), torch.randn(SIZE, 2))
        torch.manual_seed(1)
        self.module = ExperimentModule(network or Mlp(5, [16], 2), optimizer)
        self.folder = CellFolder(folder)
        self.recorder = CellRecorder(self.folder, DeviceInfo("cpu", "cpu"), 2, 5, profile=profile)
        self.trainer = small_trainer(
            default_root_dir=folder,
            callbacks=[self.recorder],
            **{"max_steps": -1, **limits},
        )  # fmt: skip
        trim(self.trainer, self.recorder)
        self.steps: ReplayedSteps | None = None
        if device is None:
            steps_per_batch = 1
        else:
            self.recorder.steps.watches_gradients = False
            device.unseen = self.recorder.steps.pause_marks
            self.steps = ReplayedSteps(self.trainer, self.recorder, steps_per_batch, EAGER, device)
            loop: Any = self.trainer.fit_loop.epoch_loop
            loop.automatic_optimization, loop.advance = self.steps, self.steps.advance
        if min_time_s is not None:
            alone = RankContext(0, 0, 1, self.recorder.device)
            RunLength(min_time_s, alone, self.recorder, steps_per_batch).attach(self.trainer)
        sampler = GlobalBatchSampler(SIZE, BatchSizes([BATCH]), 0, 7, steps_per_batch)
        self.trainer.fit(self.module, make_loader(data, sampler, LoaderConfig(), "cpu"))
        self.planned = planned_steps(self.trainer)
        self.summary = self.recorder.close(self.trainer, self.module)

    @property
    def weights(self) -> Tensor:
        return torch.cat([p.detach().flatten() for p in self.module.parameters()])


def test_a_number_that_the_host_keeps_must_not_change_from_step_to_step() -> None:
    weight = nn.Linear(1, 1, device="meta")
    optimizer = torch.optim.Adam(weight.parameters())
    kept = {"mean": torch.zeros(2), "step": torch.tensor(1.0), "on": torch.ones(1, device="meta")}
    optimizer.state[weight.weight] = kept
    before = replay.host_state(weight, optimizer)
    kept["mean"] += 1
    kept["step"] += 1
    said = replay.state_change(before, replay.host_state(weight, optimizer))
    assert said.startswith("Adam's state 'step' changes"), "not the mean, which is several numbers"


@pytest.mark.parametrize(("steps_per_batch", "awaited"), [(1, 15), (2, 7), (5, 4), (64, 1)])
def test_weights_and_losses_are_those_of_single_steps_of_which_few_are_begun_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps_per_batch: int, awaited: int
) -> None:
    monkeypatch.setattr(replay, "RUN_AHEAD_STEPS", 9)
    device = HostCapture()
    replayed = Run(tmp_path / "a", device, steps_per_batch, max_epochs=2)
    assert device.awaited == [*range(awaited)]
    eager = Run(tmp_path / "b", None, max_epochs=2)
    assert replayed.steps is not None and replayed.steps.captured is not None
    assert [
        run.trainer.optimizers[0].param_groups[0]["capturable"] for run in (replayed, eager)
    ] == [True, False]
    assert replayed.trainer.global_step == eager.trainer.global_step == 2 * STEPS_AN_EPOCH
    torch.testing.assert_close(replayed.weights, eager.weights)
    ours, theirs = ([*read_metrics(run.folder.metrics_path(0))] for run in (replayed, eager))
    assert [row.step for row in ours] == [5, 10, 12, 15, 20, 24]
    for found, expected in zip(ours, theirs, strict=True):
        assert found.values == pytest.approx(expected.values, rel=1e-5)
        assert (found.samples, found.step_samples) == (BATCH * found.step, BATCH)
        assert replace(found, time=0.0, values={}) == replace(expected, time=0.0, values={})


def test_each_step_has_its_row_and_what_is_inside_a_replay_is_missing(tmp_path: Path) -> None:
    run = Run(tmp_path, HostCapture(), max_epochs=2)
    rows = read_steps(run.folder.steps_path(0), 0).rows
    assert (list(rows["step"]), set(rows["samples"])) == (list(range(24)), {BATCH})
    assert list(rows["epoch"]) == [0] * 12 + [1] * 12
    assert (rows["host_step_ms"] > 0).all()
    inside = ("forward", "backward", "optimizer", "arrival")
    seen = np.array([~np.isnan(rows[f"host_{name}_ms"]) for name in inside]).T
    assert seen[:EAGER].all() and not seen[EAGER:].any()
    # A batch of four is waited for once, by its first step.
    waited = rows["host_data_wait_ms"][EAGER + 1 :] > 0
    assert list(waited[:8]) == [True, False, False, False, True, False, False, False]
    assert "execution=eager" in run.summary.missing["arrival"]
    assert run.planned == run.summary.steps_completed == 2 * STEPS_AN_EPOCH
    shard = read_shard(run.folder.shard_path(0), 0)
    assert len(shard.indices) == len(set(shard.indices)) == STEPS_AN_EPOCH * BATCH


def test_a_profiler_looks_between_two_replays_and_none_is_timed(tmp_path: Path) -> None:
    run = Run(tmp_path, HostCapture(), profile=ProfileConfig(window=True, steps=3), max_steps=13)
    (found,) = load_profiles(run.folder)
    assert found.steps == 3, "the fifth step of 13 ends it, amid a batch"
    rows = read_steps(run.folder.steps_path(0), 0).rows
    assert (len(rows), set(rows["flags"])) == (13, {WARMUP})


@pytest.mark.parametrize("max_steps", [1, 6, 10, 12, 17])
def test_max_steps_ends_amid_a_batch(tmp_path: Path, max_steps: int) -> None:
    run = Run(tmp_path, HostCapture(), max_steps=max_steps)
    assert run.trainer.global_step == run.summary.steps_completed == max_steps
    assert (run.planned, run.summary.samples_fed) == (max_steps, max_steps * BATCH)
    loop = run.trainer.fit_loop.epoch_loop
    assert ("_should_check_val_fx" in vars(loop)) == (max_steps == 10), "it cuts an epoch short"


@pytest.mark.parametrize("steps_per_batch", [1, 5])
def test_a_time_ends_amid_a_batch_too(
    tmp_path: Path, steps_per_batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(length, "LEAD_S", 0.5)
    run = Run(tmp_path, HostCapture(), steps_per_batch, min_time_s=0.1, max_epochs=-1)
    told = run.summary.length
    assert told is not None and told.announced_step is not None
    assert run.trainer.global_step == run.summary.steps_completed == told.announced_step
    assert run.summary.samples_fed == told.announced_step * BATCH
    assert run.summary.epochs_completed > 1


def test_clipping_acts_inside_every_step_and_callbacks_only_where_they_can(tmp_path: Path) -> None:
    clip = {"gradient_clip_val": 1e-3}
    replayed = Run(tmp_path / "a", HostCapture(), max_steps=9, **clip)
    eager = Run(tmp_path / "b", None, max_steps=9, **clip)
    free = Run(tmp_path / "c", HostCapture(), max_steps=9)
    torch.testing.assert_close(replayed.weights, eager.weights)
    assert not torch.allclose(replayed.weights, free.weights)
    eager.trainer.strategy.steps_class = ReplayedSteps  # as one has that divides the model
    with pytest.raises(ConfigError, match="found Timer, which acts inside steps"):
        trim(eager.trainer, eager.recorder, callbacks=[Timer()])


class Counting(Mlp):
    """A network that counts its calls in Python."""

    def __init__(self) -> None:
        super().__init__(5, [16], 2)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"device": HostCapture(fails=True)}, "the capture failed: RuntimeError: operation not"),
        ({"device": HostCapture(waits="the step waits at x.py:3")}, "the step waits at x.py:3"),
        ({"network": Counting()}, "Counting.calls of network changes in each step"),
        ({"optimizer": torch.optim.Adafactor},
         "Adafactor has no capturable variant; adam, adamw and sgd"),
    ],
)  # fmt: skip
def test_what_cannot_be_captured_runs_eagerly_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], reason: str
) -> None:
    numbers, end = list[int](), CellRecorder.on_train_batch_end
    counted = lambda *args: numbers.append(args[-1]) or end(*args)  # noqa: E731
    monkeypatch.setattr(CellRecorder, "on_train_batch_end", counted)
    with pytest.warns(UserWarning, match="the steps run eagerly, because"):
        run = Run(tmp_path, **{"device": HostCapture(), "max_steps": 9, **options})
    assert run.steps is not None and run.steps.captured is None
    found = run.steps.fell_back_because
    assert found is not None and found.startswith(reason)
    assert run.trainer.global_step == 9 and numbers == [*range(9)]
    rows = read_steps(run.folder.steps_path(0), 0).rows
    assert not np.isnan(rows["host_forward_ms"]).any()
    assert (rows["host_data_wait_ms"] >= 0).all()
