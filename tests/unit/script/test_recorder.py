"""What a recorder asks of optimizers, samplers and losses of others, which may be anything."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, TensorDataset

from scalewise.records import CellFolder, read_metrics
from scalewise.script import recorder as recording
from scalewise.script.recorder import ScriptRecorder, drawn_shard, share_of, steps_before
from scalewise.script.steps import Losses
from scalewise.train.recording import MetricsRecorder


def stepped(kind: type[torch.optim.Optimizer], steps: int) -> torch.optim.Optimizer:
    model = torch.nn.Linear(2, 1)
    optimizer = kind(model.parameters(), lr=0.1)  # type: ignore[call-arg]
    for _ in range(steps):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    return optimizer


@pytest.mark.parametrize(
    ("state", "before"),
    [({"step": 5.0}, 4), *((one, 0) for one in ({"step": "third"}, {"step": 0},
                                                {"step": torch.ones(2)}, 3))],
)  # fmt: skip
def test_an_optimizer_that_counts_its_steps_tells_of_those_before(state: Any, before: int) -> None:
    optimizer: Any = SimpleNamespace(state={"weight": state})
    assert steps_before(optimizer, 1) == before
    of_adam = (steps_before(stepped(torch.optim.Adam, n), k) for n, k in ((5, 1), (5, 0), (1, 1)))
    assert [*of_adam, steps_before(stepped(torch.optim.SGD, 5), 1)] == [4, 5, 0, 0]


def test_a_sampler_tells_for_which_rank_it_draws_and_of_how_many() -> None:
    data = TensorDataset(torch.ones(8))
    shared: DistributedSampler[Any] = DistributedSampler(data, num_replicas=4, rank=1)
    assert share_of(BatchSampler(shared, 2, drop_last=False)) == (1, 4)
    assert share_of(BatchSampler(RandomSampler(data), 2, drop_last=False)) is None
    assert share_of(SimpleNamespace(num_processes=2, process_index=0)) == (0, 2)
    assert share_of(None) is None


def test_what_torchs_sampler_gave_is_listed_without_changing_what_it_gives_next() -> None:
    data = TensorDataset(torch.ones(10))
    own: DistributedSampler[Any] = DistributedSampler(data, num_replicas=4, rank=1)
    first = [*own]
    own.set_epoch(3)
    shard = drawn_shard(BatchSampler(own, 2, drop_last=False), 1, 2)
    assert shard is not None and [*shard.indices] == first[:2] != [*own][:2]
    assert (shard.rank, shard.dataset_size, shard.epoch_complete, own.epoch) == (1, 10, False, 3)
    whole = drawn_shard(own, 1, 3)
    assert whole is not None and whole.epoch_complete and [*whole.indices] == first
    # Those that draw by chance, or from too much, are not listed.
    many: DistributedSampler[Any] = DistributedSampler(range(recording.MOST_AUDITED + 1), 2, 0)  # type: ignore[arg-type]
    assert drawn_shard(RandomSampler(range(4)), 0, 4) is None
    assert drawn_shard(many, 0, 4) is None
    assert drawn_shard(None, 0, 4) is None


def bare(**parts: Any) -> Any:
    """A recorder of which only these parts are there."""
    recorder = ScriptRecorder.__new__(ScriptRecorder)
    recorder.__dict__.update({"_has_ended": False, "_last": None, **parts})
    return recorder


def test_it_looks_around_at_each_of_the_first_steps_then_where_losses_are_kept() -> None:
    at, steps = SimpleNamespace(now=0), SimpleNamespace(warmup_steps=2)
    recorder = bare(losses=Mock(), _background=Mock(), _metrics=SimpleNamespace(every_n_steps=10),
                    steps=steps, _begins_until=3, _looks_after=0)  # fmt: skip
    recorder._core_meter, recorder._run_queue = Mock(), Mock()
    recorder._faults = lambda: looked.append("faults") or ()
    looked: list[Any] = []
    for at.now in range(1, 31):
        if at.now >= recorder._looks_after:
            looked.append(at.now)
            recorder._look_around(at.now)
    assert looked == [1, 2, 3, "faults", 4, 9, 10, 19, 20, 29, 30]
    assert recorder._core_meter.begin.call_count == 1, "before the last step of warm-up ends"
    recorder._run_queue.begin.assert_called_once_with(2)
    assert recorder.losses.end_step.call_count == len(looked) - 1


@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_that_end_by_time_do_not_meet_in_their_own_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    parts = "steps", "rank", "_metrics", "_find_models", "_note_what_is_missing", "_fingerprint"
    folder = CellFolder(tmp_path)
    recorder = bare(folder=folder, **{name: Mock() for name in parts})
    recorder._task = SimpleNamespace(ends_by_time=True, min_time_s=3.0)
    recorder._place = SimpleNamespace(rank=0, world_size=ranks)
    monkeypatch.setattr(recording, "RunLength", length := Mock(side_effect=EOFError))
    folder.heartbeat_path(0).parent.mkdir()
    with pytest.raises(EOFError):
        recorder.begin(stepped(torch.optim.SGD, 0))
    assert (length.call_args.args[-1] is None) == (ranks == 1)


def test_of_several_ddps_the_first_is_watched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "DistributedDataParallel", torch.nn.Linear)
    first, second = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    recorder = bare(models=Mock(), steps=Mock(), _missing={}, _watches=False)
    for found, missing in (([torch.nn.Sequential(first)], []), ([first, second], ["gradients"])):
        recorder.models.found = found
        recorder._find_models(cast(Any, None))
        assert [*recorder._missing] == missing
    recorder.steps.gradients.watch.assert_called_once_with(first, None)


@pytest.mark.parametrize(("uncounted", "told"), [(5, 800), (6, 0)])
def test_a_heartbeat_tells_samples_where_nearly_all_steps_did(uncounted: int, told: int) -> None:
    recorder = bare(steps=SimpleNamespace(steps=100, samples=800), _beaten=99, _heartbeat=Mock())
    recorder.moments = SimpleNamespace(uncounted=uncounted)
    for _ in range(2):
        recorder._beat()
    recorder._heartbeat.beat.assert_called_once_with(100, told)


@pytest.mark.parametrize(
    ("last", "steps", "is_due", "ended", "is_over"),
    [(None, 10, 0, False, False), (900, 899, 0, False, False), (900, 898, 1, False, False),
     (900, 899, 1, False, True), (900, 901, 0, False, True), (None, 3, 0, True, True)],
)  # fmt: skip
def test_a_script_is_at_its_end_with_its_last_step(
    last: int | None, steps: int, is_due: int, ended: bool, is_over: bool
) -> None:
    recorder = bare(_last=last, _has_ended=ended, steps=SimpleNamespace(steps=steps))
    recorder.moments = SimpleNamespace(is_due=is_due)
    assert recorder.is_at_end is is_over


# The loss: what a script calls backward on, of every tenth step.
class Script:
    """Ten steps of it make a row."""

    def __init__(self, folder: Path) -> None:
        cell = CellFolder(folder)
        self.path = cell.metrics_path(0)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.steps = cast(Any, SimpleNamespace(steps=0, samples=0, samples_per_step=4))
        self.metrics = MetricsRecorder(cell, self.steps, 10, loss_name="backward_loss")
        self.metrics.open(0, torch.device("cpu"))
        self.losses = Losses(self.steps, self.metrics, 2)

    def step(self, *backwards: Any) -> None:
        for tensors in backwards:
            self.losses.begin_backward(tensors)
        self.steps.steps += 1
        self.steps.samples += 4
        self.losses.end_step()

    def rows(self) -> list[tuple[int, int, dict[str, float | None]]]:
        self.metrics.drain(wait=True)
        if not self.metrics.rows:
            return []
        read = list(read_metrics(self.path))
        assert {row.epoch for row in read} == {0}
        return [(row.step, row.samples, dict(row.values)) for row in read]


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Script]:
    script = Script(tmp_path)
    yield script
    script.metrics.close()


def test_every_tenth_step_has_the_sum_of_its_batches(script: Script) -> None:
    for step in range(20):
        script.step(torch.tensor(step / 2.0), [torch.tensor(0.25)])
    assert script.rows() == [(10, 80, {"backward_loss": 4.75}), (20, 160, {"backward_loss": 9.75})]


@pytest.mark.parametrize(
    ("backwards", "values"),
    # What is no single number is no loss.
    [([torch.ones(3), None, [torch.ones(()), torch.ones(())]], []),
     ([torch.tensor(float("nan"))], [None]), ([torch.tensor(3.0)], [3.0])],
)  # fmt: skip
def test_a_loss_is_one_number_as_it_was_and_not_as_its_memory_is_now(
    script: Script, backwards: list[Any], values: list[float | None]
) -> None:
    for _ in range(10):
        script.step(*backwards)
    for loss in backwards[:1]:
        loss.fill_(7.0)
    assert script.rows() == [(10, 80, {"backward_loss": value}) for value in values]


def test_a_scaled_loss_counts_as_it_was_before(script: Script) -> None:
    for _ in range(10):
        loss = torch.tensor(2.0, requires_grad=True) * 1.0
        scaled = loss * 65536.0
        script.losses.scale(loss, scaled)
        script.step(scaled)
    assert script.rows() == [(10, 80, {"backward_loss": 2.0})]
