"""What a fit of Lightning's own leaves: every step's loss, samples and time are the step's."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.strategies import DDPStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader

from fakes.small_fit import small_trainer
from scalewise import records
from scalewise.records import CellFolder, DeviceInfo, MetricRow, RankSummary, StepSeries, read_steps
from scalewise.train.recording import CellRecorder, step_timer, summary
from scalewise.train.recording.summary import holds_replica, parameter_fingerprint, summarise

pytestmark = pytest.mark.filterwarnings(
    # Lightning's advice: workers, srun, a validation set, a batch whose size it cannot tell.
    "ignore::lightning_fabric.utilities.warnings.PossibleUserWarning",
    "ignore:.*isinstance.treespec",
    "ignore:.*returned `None`",
)


class Numbers(pl.LightningModule):
    """The loss of a batch is the mean of its numbers, whatever was learnt."""

    flops_per_sample = staticmethod(lambda: 6)

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        return (batch if isinstance(batch, Tensor) else batch.numbers).mean() + 0 * self.weight

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.25)


class Silent(Numbers):
    """Has no loss in its odd batches."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        return None if batch_idx % 2 else super().training_step(batch, batch_idx)


class ByHand(Numbers):
    """Trains in every step, and returns nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        self.manual_backward(super().training_step(batch, batch_idx))
        optimizer.step()


class Twice(ByHand):
    """Two times 5 ms of forward and 5 of backward in each batch."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        for _ in range(2):
            time.sleep(0.005)
            loss = Numbers.training_step(self, batch, batch_idx)
            loss.register_hook(lambda _: time.sleep(0.005))
            self.manual_backward(loss)
            self.optimizers().step()


class Scored(Numbers):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        pass


class Opaque:
    """A batch of which nobody can tell how many samples it holds."""

    def __init__(self, numbers: list[float]) -> None:
        self.numbers = torch.stack([torch.tensor(n) for n in numbers])

    def to(self, device: torch.device, **_: Any) -> Opaque:
        return self


class Fit:
    """One fit over these numbers, and what it recorded."""

    def __init__(
        self, folder: Path, module: pl.LightningModule, numbers: list[float], accumulate: int = 1,
        every_n_steps: int = 1, batch_size: int = 1, collate: Any = torch.tensor,
        warmup_steps: int = 0, **limits: Any,
    ) -> None:  # fmt: skip
        recorder = CellRecorder(
            CellFolder(folder), DeviceInfo("cpu", "cpu"), warmup_steps, every_n_steps
        )
        trainer = small_trainer(
            default_root_dir=folder, callbacks=[recorder],
            accumulate_grad_batches=accumulate, num_sanity_val_steps=0,
            **{"max_epochs": 1, **limits},
        )  # fmt: skip
        loader: Any = DataLoader(numbers, batch_size, collate_fn=collate)  # type: ignore[arg-type]
        strategy: Any = trainer.strategy
        strategy.communication = self.asked = Mock(return_value=None)
        trainer.fit(module, loader, loader if isinstance(module, Scored) else None)
        self.summary: RankSummary = recorder.close(trainer, module)
        self.rows: list[MetricRow] = list(records.read_metrics(recorder.folder.metrics_path(0)))
        self.steps: StepSeries = read_steps(recorder.folder.steps_path(0), 0)

    @property
    def losses(self) -> list[tuple[int, float | None]]:
        return [(r.step, r.values["train_loss"]) for r in self.rows if "train_loss" in r.values]


NUMBERS = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]


class Idle(ByHand):
    """10 ms without a backward pass."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        time.sleep(0.01)


def test_phases_of_manual_optimization_do_not_overlap(tmp_path: Path) -> None:
    idle = Fit(tmp_path / "idle", Idle(), NUMBERS, max_epochs=1).steps
    assert (idle.column("forward") >= 10).all(), "all of a batch that trains nothing"
    steps = Fit(tmp_path, Twice(), NUMBERS).steps
    assert all((steps.column(name) >= 10).all() for name in ("forward", "backward"))
    assert (steps.column("other") >= 0).all()


@pytest.mark.parametrize(
    ("numbers", "options", "losses", "samples"),
    [(NUMBERS, {"accumulate": 4}, [(1, 2.5), (2, 6.5)], [4, 4]),
     # The last loss of an epoch is of its whole step, however seldom losses are read.
     (NUMBERS, {"accumulate": 4, "every_n_steps": 10}, [(2, 6.5)], [4]),
     # The last step has fewer batches.
     ([1.0, 1.0, 1.0, 2.0, 4.0], {"accumulate": 3}, [(1, 1.0), (2, 3.0)], [3, 2]),
     # A batch counts by its samples.
     ([1.0, 1.0, 1.0, 5.0], {"accumulate": 2, "batch_size": 3}, [(1, 2.0)], [4]),
     # Batches whose samples cannot be counted make steps all the same.
     ([10.0] * 8, {"accumulate": 4, "collate": Opaque}, [(1, 10.0), (2, 10.0)], [None, None])],
)  # fmt: skip
def test_a_recorded_loss_is_the_mean_over_the_samples_of_its_step(
    tmp_path: Path, numbers: list[float], options: dict[str, Any], losses: Any, samples: Any
) -> None:
    fit = Fit(tmp_path, Numbers(), numbers, **options)
    assert fit.losses == [(step, pytest.approx(loss)) for step, loss in losses]
    assert [row.step_samples for row in fit.rows] == samples


class Both(Scored):
    """Logs in training, under the recorder's own names too, over the epoch, and in validation."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        for name in ("train/now", "train_loss", "learning_rate"):
            self.log(name, float(self.current_epoch), on_step=False, on_epoch=True)
        self.log("step", float(batch_idx), on_step=True, on_epoch=False)
        return super().training_step(batch, batch_idx)

    def on_train_epoch_end(self) -> None:  # after the recorder's own
        self.log("late", float(self.current_epoch))
        if self.current_epoch == 0:
            self.log("once", 7.0)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log_dict({"val/now": float(self.current_epoch), "step of val": 1.0})


def test_each_value_is_recorded_once_where_it_was_logged(tmp_path: Path) -> None:
    """Validation ends before the epoch, when Lightning still tells the training of the last."""
    fit = Fit(tmp_path, Both(), [1.0] * 2, max_epochs=2)
    logged = [row.values for row in fit.rows if "train_loss" not in row.values]
    assert [row.epoch for row in fit.rows if "late" in row.values] == [0, 1]
    expected: list[dict[str, float]] = []
    for epoch in (0.0, 1.0):
        own = {"train/now": epoch, "logged/train_loss": epoch, "logged/learning_rate": epoch}
        late = {"late": epoch, "once": 7.0} if epoch == 0 else {"late": epoch}
        expected += {"val/now": epoch, "step of val": 1.0}, {**own, "step": 1.0, **late}
    assert (logged, fit.losses) == (expected, [(step, 1.0) for step in (1, 2, 3, 4)])
    last = {"train_loss": 1.0, "learning_rate": 0.25, "once": 7.0, **expected[2], **expected[3]}
    assert fit.summary.metrics == last


@pytest.mark.parametrize(
    ("module", "accumulate", "without"),
    [(Silent, 1, 2), (Silent, 2, 0), (Numbers, 1, 0), (ByHand, 1, None)],
)
def test_steps_that_trained_nothing_are_counted_where_a_loss_is_owed(
    tmp_path: Path, module: type[Numbers], accumulate: int, without: int | None
) -> None:
    fit = Fit(tmp_path, module(), [1.0] * 4, accumulate=accumulate)
    assert (fit.summary.steps_without_loss, fit.summary.flops_per_sample) == (without, 6.0)
    watched_ms, steps_ms = fit.summary.core_use.window_s * 1e3, fit.steps.column("step")
    assert watched_ms >= steps_ms[1:].sum(), "none of them warms up"


def test_a_strategy_is_asked_what_timed_steps_sent(tmp_path: Path) -> None:
    Fit(tmp_path, Numbers(), [1.0] * 5, warmup_steps=2).asked.assert_called_once_with(3)


def test_validation_amid_a_step_lets_it_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []

    class Watched(step_timer.StepClock):
        def begin(self) -> None:
            begun.append(len(self._batches))
            super().begin()

    monkeypatch.setattr(step_timer, "StepClock", Watched)
    fit = Fit(tmp_path, Scored(), [1.0] * 4, accumulate=2, val_check_interval=1)
    assert (list(fit.steps.rows["samples"]), begun) == ([2, 2], [1, 1, 1])


@pytest.mark.parametrize(
    ("world_size", "strategy", "alike"),
    [(2, DDPStrategy(), True), (1, DDPStrategy(), False), (2, object(), False),
     (2, type("Local", (DDPStrategy,), {"ends_alike": False})(), False)],
)  # fmt: skip
def test_all_ranks_of_ddp_have_to_end_alike(world_size: int, strategy: Any, alike: bool) -> None:
    trainer: Any = SimpleNamespace(world_size=world_size, strategy=strategy)
    assert holds_replica(trainer) is alike


@pytest.mark.parametrize(
    ("looks", "core", "queue"),
    # After batches one by one, whose count is the one by then, and after several replays at once.
    [([(n, n) for n in range(296, 304)], 4, [300]), ([(0, 200), (200, 400), (400, 600)], 2, [400]),
     ([(0, 300), (300, 600)], 1, [300])],
)  # fmt: skip
def test_meters_begin_before_the_first_timed_step(looks: Any, core: int, queue: list[int]) -> None:
    parts = {name: Mock() for name in ("_heartbeat", "_background", "_core_meter", "_run_queue")}
    recorder = CellRecorder.__new__(CellRecorder)
    vars(recorder).update(parts, profiled=None, steps=Mock(warmup_steps=300))
    for before, recorder.steps.steps in looks:
        recorder._look_around(Mock(), before)
    assert parts["_core_meter"].begin.call_count == core
    assert [one.args[0] for one in parts["_run_queue"].begin.call_args_list] == queue


@pytest.mark.parametrize(
    ("device", "memory"),
    [(DeviceInfo("cpu", "x"), (None, None, None)), (DeviceInfo("cuda", "x"), (3.5, 5.5, 2))],
)
def test_a_summary_has_each_figure_under_its_name(
    monkeypatch: pytest.MonkeyPatch, device: DeviceInfo, memory: tuple[float | None, ...]
) -> None:
    monkeypatch.setattr(summary.resource, "getrusage", lambda _: Mock(ru_maxrss=15 << 9))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 7 << 19)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: 11 << 19)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda: {"num_alloc_retries": 2})
    steps: Any = SimpleNamespace(steps=10, samples=55, step_samples=(10, 5), rows=9)
    steps.gradients = SimpleNamespace(bucket_bytes=16, buckets=2)
    steps.batch_shape, logged = (5, 2), Mock(rows=7)
    parameters = [*nn.Linear(2, 2).requires_grad_(False).parameters(), nn.Parameter(torch.ones(3))]
    more = {"epochs_completed": 1, "flops_per_sample": None, "metrics": {}}
    one = summarise(3, 1, device, steps, logged, parameters, [], **more)
    assert (one.peak_allocated_mib, one.peak_reserved_mib, one.allocation_retries) == memory
    assert vars(one).items() >= {
        "rank": 3, "local_rank": 1, "steps_completed": 10, "samples_fed": 55, "step_rows": 9,
        "largest_step_samples": 10, "usual_step_samples": 5, "metric_rows": 7,
        "parameters_total": 9, "parameters_trainable": 3, "batch_shape": (5, 2),
        "gradient_bytes": 16, "gradient_buckets": 2, "peak_rss_mib": 7.5,
    }.items()  # fmt: skip


def test_a_fingerprint_is_the_norm_and_a_projection_of_what_learns() -> None:
    module, cpu = torch.nn.Linear(4, 1, bias=False), torch.device("cpu")
    module.weight.data = torch.tensor([[2.0, 4.0, 5.0, 6.0]])
    first = parameter_fingerprint(module.parameters(), cpu)
    module.weight.data = torch.tensor([[5.0, 6.0, 2.0, 4.0]])
    turned = parameter_fingerprint(module.parameters(), cpu)
    assert first is not None and turned is not None
    assert first[0] == turned[0] == 9.0
    assert first[1] != turned[1], "the same numbers in another order"
    assert parameter_fingerprint([], cpu) is None
    assert parameter_fingerprint([torch.full((2,), torch.nan, requires_grad=True)], cpu) is None
    module.requires_grad_(False)
    assert parameter_fingerprint(module.parameters(), cpu) is None
