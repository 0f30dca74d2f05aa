"""Every strategy that should, follows the loss of one device: 50 steps, fp32, 2 ranks on gloo.

A strategy is added by a line in VARIANTS: its overrides on top of ``fakes.strategy_ranks.BASE``.
"""

import pytest

from fakes.strategy_ranks import RANKS, Trained, train_variants
from scalewise.records import read_metrics, read_shard

EXACT = 1e-4
"""Relative difference of the loss in any step for a strategy that computes the same thing."""
CLOSE = 0.05
"""The same for one that changes what is computed; its mean over the last 10 steps: CLOSE / 5."""

DDP = ("strategy=ddp", "strategy.devices=2")
IN_TWO = ("batch_size=8", "accumulate_grad_batches=2")
LOCAL = ("strategy=local_sgd", "strategy.devices=2")
SGD = ("optimizer=sgd", "optimizer.lr=0.05")
UNEVEN = ("strategy=heterogeneous", "strategy.devices=2")

VARIANTS: dict[str, tuple[str, ...]] = {
    "single": ("validation=end",),
    "single_sgd": SGD,
    "single_accumulated": IN_TWO,
    "ddp": DDP,
    "ddp_static_graph": (*DDP, "strategy.static_graph=true"),
    "ddp_own_gradients": (*DDP, "strategy.gradient_as_bucket_view=false"),
    "ddp_find_unused": (*DDP, "strategy.find_unused_parameters=true"),
    "ddp_accumulated": (*DDP, *IN_TWO),
    "ddp_static_accumulated": (*DDP, *IN_TWO, "strategy.static_graph=true"),
    "ddp_without_no_sync": (*DDP, *IN_TWO, "strategy.no_sync=false"),
    "heterogeneous": (*UNEVEN, "strategy.shares=[0.7,0.3]"),
    "heterogeneous_accumulated": (*UNEVEN, *IN_TWO, "strategy.shares=[0.3,0.7]"),
    "local_sgd_every_step": (*LOCAL, "strategy.period=1", *SGD),
    "local_sgd": (*LOCAL, "strategy.period=4", "validation=end"),
    "local_sgd_unscored": (*LOCAL, "strategy.period=4", "dataset.samples=400"),
    "local_sgd_scored": (*LOCAL, "strategy.period=4", "dataset.samples=400", "validation=epoch"),
    "fp16": (*DDP, "strategy.compression=fp16"),
    "bf16": (*DDP, "strategy.compression=bf16"),
    "powersgd": (*DDP, "strategy.compression=powersgd", "strategy.powersgd_rank=4"),
    "two_hosts_ddp": DDP,
    "two_hosts_heterogeneous": (*UNEVEN, "strategy.shares=[0.7,0.3]"),
    "two_hosts_local_sgd": (*LOCAL, "strategy.period=1", *SGD),
    "task_parallel": ("strategy=task_parallel", "strategy.devices=2"),
}
BASELINE = {
    "local_sgd_every_step": "single_sgd",
    "two_hosts_local_sgd": "single_sgd",
    "local_sgd_scored": "local_sgd_unscored",
}
"""What a variant is compared with, where that is not ``single``."""
CHANGED = ("fp16", "bf16", "powersgd")
"""Variants that change what is computed, and say so in docs/strategies.md."""
APART = ("single", "single_sgd", "task_parallel", "local_sgd", "local_sgd_unscored")
"""Baselines, and variants whose replicas differ between (or at) all steps."""


def differences(trained: Trained, name: str) -> list[float]:
    """Relative difference from the baseline's loss in every step."""
    return trained.differences(name, BASELINE.get(name, "single"))


def last_ten(trained: Trained, name: str) -> float:
    """Relative difference of the mean loss over the last 10 steps."""
    single = trained.losses[BASELINE.get(name, "single")]
    return abs(sum(trained.losses[name][-10:]) / sum(single[-10:]) - 1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return train_variants(tmp_path_factory.mktemp("strategies"), VARIANTS)


@pytest.mark.parametrize("name", [n for n in VARIANTS if n not in (*CHANGED, *APART)])
def test_a_strategy_follows_the_loss_of_one_device(trained: Trained, name: str) -> None:
    single = trained.losses[BASELINE.get(name, "single")]
    assert len(single) == 50
    assert sum(single[-10:]) < 0.95 * sum(single[:10])
    assert max(differences(trained, name)) <= EXACT


@pytest.mark.parametrize("name", CHANGED)
def test_compressed_gradients_stay_close_and_send_less(trained: Trained, name: str) -> None:
    assert EXACT < max(differences(trained, name)) <= CLOSE
    assert last_ten(trained, name) <= CLOSE / 5
    whole = trained.rank("ddp").communication
    sent = trained.rank(name).communication
    assert whole.payload_bytes_per_step == trained.rank("ddp").gradient_bytes
    ratio = sent.payload_bytes_per_step / whole.payload_bytes_per_step
    assert ratio == 0.5 if name != "powersgd" else ratio < 0.25


def test_reductions_are_counted_for_each_optimizer_step(trained: Trained) -> None:
    rounds = {
        name: trained.rank(name).communication
        for name in ("ddp", "ddp_accumulated", "ddp_without_no_sync", "single", "task_parallel")
    }
    counted = {name: one.rounds_per_step if one else None for name, one in rounds.items()}
    assert counted == {
        "ddp": 1, "ddp_accumulated": 1, "ddp_without_no_sync": 2, "single": None,
        "task_parallel": None,
    }  # fmt: skip


def test_an_accumulated_step_counts_all_of_its_samples(trained: Trained) -> None:
    assert trained.rank("ddp_accumulated").steps_completed == 50
    assert trained.rank("ddp_accumulated").samples_fed == 50 * 8
    rows = read_metrics(trained.cell("ddp_accumulated").metrics_path(0))
    assert [row.step for row in rows] == list(range(1, 51))
    assert rows[-1].samples == 50 * 16
    assert rows[-1].step_samples == 8


def test_uneven_shares_are_whole_disjoint_and_counted(trained: Trained) -> None:
    fed = [trained.rank("heterogeneous", r).samples_fed for r in range(RANKS)]
    assert fed == [50 * 11, 50 * 5]  # 0.7 and 0.3 of 16
    folder = trained.cell("heterogeneous")
    first, second = (set(read_shard(folder.shard_path(r), r).indices) for r in range(RANKS))
    assert not first & second
    rows = [read_metrics(folder.metrics_path(r))[-1] for r in range(RANKS)]
    assert [row.samples for row in rows] == [50 * 16] * RANKS
    assert [row.step_samples for row in rows] == [11, 5]


def test_local_sgd_diverges_between_averagings_and_learns(trained: Trained) -> None:
    """Each rank's own loss on its own samples: one averaging in four steps keeps them together."""
    assert max(differences(trained, "local_sgd")) > EXACT
    assert last_ten(trained, "local_sgd") <= 0.2
    alone, together = (trained.rank(n).metrics["val_loss"] for n in ("single", "local_sgd"))
    assert alone is not None and together is not None
    # What is scored is the mean of the replicas: one model, the same on all ranks.
    assert together == pytest.approx(alone, rel=0.15)
    assert together == trained.rank("local_sgd", 1).metrics["val_loss"]
    sent = trained.rank("local_sgd").communication
    assert sent is not None and sent.what == "parameters"
    assert sent.rounds_per_step == pytest.approx(11 / 45)  # steps 8, 12, ..., 48 of 6 to 50
    assert sent.payload_bytes_per_step == pytest.approx(11 / 45 * 4 * 54_403)
    assert sent.ms_per_step is not None and sent.ms_per_step > 0


def test_independent_replicas_train_models_of_their_own(trained: Trained) -> None:
    """They start alike and see other samples: their losses part."""
    assert differences(trained, "task_parallel")[0] <= EXACT
    assert max(differences(trained, "task_parallel")) > 0.01
