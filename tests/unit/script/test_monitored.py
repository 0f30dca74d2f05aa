"""One line in a training loop: what it records, and what it leaves alone."""

import contextlib
import functools
import importlib
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import pytest
import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, dataloader

import scalewise
from scalewise.analysis import analyse, load_sweep
from scalewise.config import ConfigError
from scalewise.host import ENV_SCRIPT, RunQueue
from scalewise.records import UNCOUNTED, CellFolder, SweepFolder, read_metrics, read_steps
from scalewise.script import monitored, recorder
from scalewise.script.entry import active
from scalewise.train import describe_model
from scalewise.train.recording.step_clock import ALL_DIVIDED


@pytest.fixture(autouse=True)
def no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x)
        return out


def trained() -> tuple[Net, torch.optim.Optimizer]:
    model = Net()
    return model, torch.optim.SGD(model.parameters(), 0.01)


def batches(count: int, size: int = 8) -> Iterator[torch.Tensor]:
    return (torch.ones(size, 4) for _ in range(count))


def train(
    folder: Path, steps: int = 30, size: int = 8,
    each: Callable[[int, Any], None] = lambda i, m: None,
    given: Iterator[torch.Tensor] | None = None,
) -> None:  # fmt: skip
    model, optimizer = trained()
    with scalewise.monitor(model, optimizer, folder=folder) as m:
        for i, batch in enumerate(m(given or batches(steps, size))):
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            m.log("loss of mine", loss)
            each(i, m)


def cells(folder: Path) -> list[CellFolder]:
    return [cell for _, cell in SweepFolder(folder).cells()]


def test_every_step_is_recorded_with_its_samples_phases_and_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "RunQueue", lambda: RunQueue(tmp_path / "schedstat"))
    data = TensorDataset(torch.ones(480, 4))
    inner = DataLoader(data, 8, sampler=DistributedSampler(data, 2, 1))  # not told of ranks here
    train(tmp_path / "records", given=(batch for (batch,) in inner))
    (cell,) = cells(tmp_path / "records")
    (rank,) = cell.load_result().ranks
    assert (rank.steps_completed, rank.samples_fed, rank.batch_shape) == (30, 240, (8, 4))
    assert rank.loader_batch_size == 8, "also within a generator"
    assert (rank.parameters_total, rank.own_optimizer) == (10, "SGD")
    assert rank.parameters_changed and 50 < rank.peak_rss_mib < 50_000
    assert {"shard_audit", "device", "plain start", "exposed_comm_ms"}.isdisjoint(rank.missing)
    assert rank.run_queue_ms_per_step is None, "the kernel does not tell"
    assert "schedstat" in rank.missing["run_queue_ms_per_step"]
    assert cell.load_config()["strategy"] == {"name": "single"}
    assert len(cell.device_series_paths()) == 1, "the first rank of a host samples its devices"
    series = read_steps(cell.steps_path(0), 0).timed()
    assert len(series.column("forward")) == 20
    for phase in ("data_wait", "forward", "backward", "optimizer"):
        assert (series.column(phase) > 0).all()
    mine = [row for row in read_metrics(cell.metrics_path(0)) if "loss of mine" in row.values]
    assert [row.step for row in mine] == [*range(1, 31)]
    theirs = [row for row in read_metrics(cell.metrics_path(0)) if "backward_loss" in row.values]
    assert [row.step for row in theirs] == [10, 20, 30]
    for row in theirs:
        assert row.values["backward_loss"] == pytest.approx(
            mine[row.step - 1].values["loss of mine"]
        )


def test_backward_is_watched_for_phases_and_for_losses_alone(tmp_path: Path) -> None:
    plain, watched = torch.autograd.backward, []

    def look(i: int, m: Any) -> None:
        watched.append(torch.autograd.backward is not plain)

    train(tmp_path / "records", steps=ALL_DIVIDED + 74, each=look)
    assert all(watched[:ALL_DIVIDED])
    assert all(watched[9::10])
    assert watched.count(False) > 20
    rows = read_metrics(cells(tmp_path / "records")[0].metrics_path(0))
    assert [row.step for row in rows if "backward_loss" in row.values] == [*range(10, 331, 10)]


@pytest.mark.parametrize(("patched_after", "is_lost"), [(20, False), (ALL_DIVIDED + 20, True)])
def test_what_patches_backward_amid_training_takes_no_phase_unsaid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patched_after: int, is_lost: bool
) -> None:
    """Over the hook it is called by that; in its place while it rests, none comes any more."""
    patched = []

    def patch(i: int, m: Any) -> None:
        inner = torch.autograd.backward
        if i >= patched_after and not patched and (inner is plain) == is_lost:
            patched.append(i)
            monkeypatch.setattr(torch.autograd, "backward", functools.partial(inner))

    plain = torch.autograd.backward
    train(tmp_path / "records", steps=ALL_DIVIDED + 120, each=patch)
    (cell,) = cells(tmp_path / "records")
    (rank,) = cell.load_result().ranks
    late = read_steps(cell.steps_path(0), 0).rows["host_backward_ms"][patched[0] + 1 :]
    assert (late > 0).any() != is_lost
    assert ("backward" in rank.missing) == is_lost


def test_equal_trainings_are_repeats_with_samples_by_seed_others_are_not(tmp_path: Path) -> None:
    for seed, size in ((1, 8), (2, 8), (2, 8), (2, 4)):
        torch.manual_seed(seed)
        train(tmp_path / "records", size=size)
    found = analyse(load_sweep(tmp_path / "records")).configurations
    other, config = sorted(found, key=lambda one: len(one.runs))
    assert (len(other.runs), len(config.runs), config.seeds) == (1, 3, [1, 2])
    assert config.name("model") == "Net"
    learned = config.estimate("loss of mine")
    assert learned and learned.n == 2


def test_afterwards_nothing_of_torch_is_changed(tmp_path: Path) -> None:
    def seen() -> tuple[Any, ...]:
        iterator: Any = dataloader._BaseDataLoaderIter
        scaler: Any = torch.amp.GradScaler
        hooks = tuple(_global_optimizer_post_hooks)
        return torch.autograd.backward, iterator.__next__, scaler.scale, hooks, active()

    before, (model, optimizer) = seen(), trained()
    with scalewise.monitor(model, optimizer, folder=tmp_path / "records"):
        for batch in batches(12):
            model(batch).sum().backward()
            optimizer.step()
        assert seen() != before
        assert model._compiled_call_impl is not None
    assert seen() == before
    assert model._compiled_call_impl is None


def test_a_loader_is_handed_on_as_it_is_and_its_batches_count_once(tmp_path: Path) -> None:
    loader = DataLoader(TensorDataset(torch.ones(96, 4)), 8)
    model = Net()
    optimizer = torch.optim.SGD([model.layer.weight], 0.01)
    with scalewise.monitor(optimizer, folder=tmp_path / "records", warmup_steps=0) as m:
        assert len(m(loader)) == 12
        for _ in range(2):
            for (batch,) in m(loader):
                model.layer.weight.grad = batch.sum() * torch.ones(2, 4)
                optimizer.step()
            with torch.no_grad():
                assert sum(len(batch) for (batch,) in loader) == 96, "seen, and not trained on"
    (cell,) = cells(tmp_path / "records")
    (rank,) = cell.load_result().ranks
    assert (rank.steps_completed, rank.samples_fed, rank.loader_batch_size) == (24, 192, 8)
    assert rank.largest_step_samples == 8
    with pytest.raises(TypeError, match="has no len"):
        len(m(batches(3)))


def test_for_a_batch_that_a_thread_fetches_ahead_nobody_is_seen_to_wait(tmp_path: Path) -> None:
    ahead: Any = queue.Queue(1)
    seen: list[object] = []

    def fetch(m: Any) -> None:
        for (batch,) in m(DataLoader(TensorDataset(torch.ones(240, 4)), 8)):
            ahead.put(batch)
        ahead.put(None)

    model, optimizer = trained()
    with scalewise.monitor(model, optimizer, folder=tmp_path) as m:
        recorder = active()
        assert recorder is not None
        begin = recorder.moments.begin_fetch
        recorder.moments.begin_fetch = lambda: seen.append(None) or begin()  # type: ignore[method-assign,func-returns-value]
        thread = threading.Thread(target=fetch, args=(m,))
        thread.start()
        while (batch := ahead.get()) is not None:
            model(batch).square().mean().backward()
            optimizer.step()
        thread.join()
    (rank,) = cells(tmp_path)[0].load_result().ranks
    assert (rank.steps_completed, rank.samples_fed, seen) == (30, 240, [])
    assert rank.loader_batch_size == 8, "of which loader they are is known all the same"


def test_one_within_another_or_under_scalewise_run_leaves_the_records_to_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def inner(i: int, m: Any) -> None:
        if i == 0:
            train(tmp_path / "inner", steps=1)

    train(tmp_path / "records", each=inner)
    assert len(cells(tmp_path / "records")) == 1
    monkeypatch.setitem(os.environ, ENV_SCRIPT, "{}")
    train(tmp_path / "run")
    assert [path.name for path in tmp_path.iterdir() if path.name != "runtime"] == ["records"]


@pytest.mark.parametrize(
    ("error", "said"),
    [(SystemExit(3), "rank 0: the script left with exit status 3 amid the fit (after 15 steps)"),
     (SystemExit(), None)],
)  # fmt: skip
def test_what_ends_a_loop_early_is_its_reason_and_comes_through(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], error: BaseException, said: str | None
) -> None:
    def fail(i: int, m: Any) -> None:
        if i == 15:
            raise error

    with pytest.raises(type(error)):
        train(tmp_path / "records", each=fail)
    (cell,) = cells(tmp_path / "records")
    assert [one.message for one in cell.attempts()] == [said] * (said is not None)
    assert (said or "scalewise report") in capsys.readouterr().err
    assert cell.is_done() == (said is None), "it left in order"


def test_a_model_without_tensors_is_timed_and_nobody_counts_its_samples(tmp_path: Path) -> None:
    (model, optimizer), done = trained(), 0
    model.forward = int  # type: ignore[assignment]
    optimizer.state["a parameter"] = {"step": 7}  # of a checkpoint
    with scalewise.monitor(model, optimizer, folder=tmp_path / "records") as m:
        for done in map(model, m(range(30))):  # no tensors
            optimizer.step()
            model.layer.bias.data.div_(done < 20)
    assert (done, active()) == (29, None)
    result = cells(tmp_path / "records")[0].load_result()
    assert result.ranks[0].parameters_changed is None, "they are no numbers any more"
    assert "samples of 30 of 30 steps" in result.ranks[0].missing[UNCOUNTED]
    assert "had done 7 steps" in result.ranks[0].missing["fresh start"]
    assert result.global_batch_size is None
    with pytest.warns(UserWarning, match="found no `with"):
        scalewise.monitor(model, optimizer).log("loss", 1.0)


@pytest.mark.parametrize(("told", "is_counted"), [(60, True), (57, True), (40, False)])
def test_steps_that_stop_telling_their_samples_make_no_rate(
    tmp_path: Path, told: int, is_counted: bool
) -> None:
    class Lists(torch.nn.Linear):
        def forward(self, batch: Any) -> torch.Tensor:
            return super().forward(torch.as_tensor(batch[0]))

    model = Lists(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with scalewise.monitor(model, optimizer, folder=tmp_path / "records"):
        for i in range(60):
            batch = torch.ones(8, 4)
            optimizer.zero_grad()
            model([batch] if i < told else [batch.tolist()]).square().mean().backward()
            optimizer.step()
    result = cells(tmp_path / "records")[0].load_result()
    assert (UNCOUNTED not in result.ranks[0].missing) is is_counted
    assert result.global_batch_size == (8 if is_counted else None)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_step_within_a_compiled_function_is_timed_and_not_traced(tmp_path: Path) -> None:
    ended = []
    for folder in (None, tmp_path / "records"):
        torch.manual_seed(0)
        model, optimizer = trained()

        @torch.compile(backend="eager")
        def step(batch: torch.Tensor, model: Any = model, optimizer: Any = optimizer) -> None:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()

        with contextlib.ExitStack() as stack:
            if folder is not None:
                stack.enter_context(scalewise.monitor(model, optimizer, folder=folder))
            for i, batch in enumerate(batches(60)):
                step(batch)
                if i in (45, 50):
                    model.eval()
                    with torch.no_grad():
                        model(batch)
                    model.train()
        ended.append([one.detach() for one in model.parameters()])
    assert all(map(torch.equal, *ended))
    result = cells(tmp_path / "records")[0].load_result()
    assert result.global_batch_size is None and result.per_device_batch_size is None
    (rank,) = result.ranks
    assert 30 < rank.steps_completed == rank.samples_fed < 60
    assert UNCOUNTED in rank.missing
    assert (rank.parameters_total, rank.parameters_changed) == (10, True)
    untimed = read_steps(cells(tmp_path / "records")[0].steps_path(0), 0).rows["flags"] != 0
    first = 60 - rank.steps_completed
    assert [n + first for n in range(10, len(untimed)) if untimed[n]] == [46, 51]


def test_of_a_trainer_of_transformers_losses_are_told_and_what_it_hides_is_said_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, monitor, said, note = "scalewise.script.hugging_face", Mock(), list[str](), Mock()
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(TrainerCallback=object))
    monkeypatch.setitem(sys.modules, module, Mock())  # and away again with the test
    monkeypatch.delitem(sys.modules, module)
    ours = importlib.import_module(module)
    monkeypatch.setattr(ours, "say", said.append)
    monkeypatch.setattr(ours, "active", lambda: note)
    callback = ours._Callback(monitor)
    for logs in ({"loss": 1.0, "epoch": 2.0}, {"train_runtime": 3.0}, None):
        callback.on_log(None, None, None, logs=logs)
    for hides, first in ((True, True), (True, False), (False, True)):
        args, state = Mock(logging_nan_inf_filter=hides), Mock(is_world_process_zero=first)
        callback.on_train_begin(args, state, None, optimizer="its", model="own")
        callback.on_step_end(args, state, None)
    assert monitor.mock_calls == [call.log("loss", 1.0), *[call.begin(["its"], ["own"])] * 3]
    assert (len(said), note.note.call_count) == (1, 2)


def test_what_it_refuses_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for given, found in ((Net(), "no optimizer"), (3, "int")):
        with pytest.raises(ConfigError, match=f"found {found}; allowed: models and optimizers of"):
            scalewise.monitor(given)
    with pytest.raises(ValueError, match=r"log: found 'three' of shape \(3,\); allowed: one"):
        train(tmp_path / "records", each=lambda i, m: m.log("three", torch.ones(3)))
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="no process group, and WORLD_SIZE=2; allowed: a line"):
        train(tmp_path / "records")
    monkeypatch.setattr(monitored, "_MEET_S", 0.2)
    monkeypatch.setattr(monitored, "default_store", torch.distributed.HashStore)
    with pytest.raises(ConfigError, match=r"rank 0 waited 0.2 s for the others; allowed: the same"):
        monitored._meet("mine", 0, 2)


def test_of_several_failures_the_first_is_told() -> None:
    errors, told = [ValueError("first"), ValueError("then")], list[Exception]()
    guest: Any = SimpleNamespace(failure=None, fail=told.append)
    for error in errors:
        monitored._Guest._give_up(guest, error)
    assert (guest.failure, told) == (errors[0], errors)


def test_a_model_keeps_its_name_within_what_torch_makes_of_it() -> None:
    class FSDPModule:
        pass

    model = Net()
    compiled = nn.Module()
    compiled._orig_mod = model
    assert monitored.unwrapped(compiled) is model
    sharded = Net()
    sharded.__class__ = type("FSDPNet", (FSDPModule, Net), {})
    assert describe_model(sharded)["class"] == describe_model(model)["class"]


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_a_batch_that_a_checkpoint_runs_anew_counts_once(tmp_path: Path, reentrant: bool) -> None:
    model, optimizer = trained()
    with scalewise.monitor(model, optimizer, folder=tmp_path / "records", warmup_steps=0):
        for batch in batches(12):
            checkpoint(model, batch.requires_grad_(), use_reentrant=reentrant).sum().backward()
            optimizer.step()
    (cell,) = cells(tmp_path / "records")
    (rank,) = cell.load_result().ranks
    assert rank.samples_fed == 8 * rank.steps_completed > 0
    assert rank.largest_step_samples == 8
