"""Every strategy that should, follows the loss of one device: fp32, 2 ranks on gloo.

A strategy is added by a line: in VARIANTS where it replicates the model, in PARTS where it divides
it. What each trains begins in one pair of processes: to start them takes longer than to train.
"""

import pytest

from fakes.strategy_ranks import BASE, JITTERED, RANKS, Trained, train_variants
from scalewise.analysis.balance import audit_shards
from scalewise.records import PipelineRecord, RankSummary, read_metrics, read_shard, read_steps

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
    "single": ("validation=end",), "single_sgd": SGD, "single_accumulated": IN_TWO, "ddp": DDP,
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
    "fp16": (*DDP, "strategy.compression=fp16"), "bf16": (*DDP, "strategy.compression=bf16"),
    "powersgd": (*DDP, "strategy.compression=powersgd", "strategy.powersgd_rank=4"),
    "two_hosts_ddp": DDP, "two_hosts_heterogeneous": (*UNEVEN, "strategy.shares=[0.7,0.3]"),
    "two_hosts_local_sgd": (*LOCAL, "strategy.period=1", *SGD),
    "task_parallel": ("strategy=task_parallel", "strategy.devices=2"),
}  # fmt: skip
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

PARTS_STEPS = 20
PARTS_BASE = (
    "hardware=cpu", "tracking=none", "batch_size=16", f"max_steps={PARTS_STEPS}", "warmup_steps=5",
    "validation=end", "log_every_n_steps=1", "model.dropout=0",
)  # fmt: skip
GPT2 = (
    "model=gpt2_tiny", "model.width=32", "model.heads=2", "model.context_length=16",
    "dataset=synthetic_tokens", "dataset.train_samples=1000", "optimizer=adamw",
    "dataset.validation_samples=33",  # a batch more for one rank than for the other, if cut blindly
)  # fmt: skip
TEXT = (
    "model=text_base", "model.width=16", "model.heads=2", "model.feedforward_width=32",
    "model.vocabulary_size=500", "model.max_tokens=16", "dataset=synthetic_text",
    "dataset.train_samples=1000", "dataset.validation_samples=50",
)  # fmt: skip
MLP = ("model=medium", "dataset=tabular", "dataset.samples=1000")
LATE = ("model=medium", "model._target_=fakes.small_fit.LateLayers", *MLP[1:])
CLIP = ("gradient_clip_norm=0.2",)
ON_TWO = ("strategy.devices=2",)
FSDP = ("strategy=fsdp", *ON_TWO)
PIPELINE = ("strategy=pipeline", "strategy.microbatches=4", *ON_TWO)
GPIPE = ("strategy=gpipe", "strategy.microbatches=4", *ON_TWO)
RECOMPUTED = ("execution.activation_checkpointing=true",)
TWIN = (*GPT2, "strategy=ddp", *ON_TWO, "deterministic=true", "model.dropout=0.1")

PARTS: dict[str, tuple[str, ...]] = {
    "gpt2": GPT2, "gpt2_clipped": (*GPT2, *CLIP), "text": TEXT, "mlp": (*MLP, *SGD), "late": LATE,
    "gpt2/fsdp": (*GPT2, *FSDP),
    "gpt2/fsdp_grad_op": (*GPT2, *FSDP, "strategy.sharding=grad_op", *RECOMPUTED, *IN_TWO),
    "gpt2/pipeline": (*GPT2, *PIPELINE), "gpt2/gpipe": (*GPT2, *GPIPE),
    "gpt2_clipped/fsdp": (*GPT2, *FSDP, *CLIP),
    "gpt2_clipped/pipeline": (*GPT2, *PIPELINE, *CLIP, *RECOMPUTED),
    "text/pipeline": (*TEXT, *PIPELINE), "mlp/pipeline": (*MLP, *SGD, *PIPELINE),
    "late/fsdp": (*LATE, *FSDP), "twin": TWIN, "twin_again": TWIN,
}  # fmt: skip
"""Up to the slash stands what a variant is compared with."""
DIVIDED = [name for name in PARTS if "/" in name]
MAIN = ["gpt2/fsdp", "gpt2/pipeline"]

# Ranks of which one is late by random times end after the step that rank 0 announced.

MIN_TIME_S = 0.5
LEAST_LEAD_S = 0.25
TIMED: dict[str, tuple[str, ...]] = {
    "ddp": ("strategy=ddp", "accumulate_grad_batches=2", "batch_size=8", "validation=epoch"),
    "local_sgd": ("strategy=local_sgd", "strategy.period=7"),
    "pipeline": ("strategy=pipeline", "strategy.microbatches=2"),
    "task_parallel": ("strategy=task_parallel",),
}
"""Steps that begin with a batch or not, meet in each step, seldom, or never."""
TIMED_BASE = (
    *BASE, "max_steps=null", f"measure.min_time_s={MIN_TIME_S}", "dataset.samples=400",
    "strategy.devices=2",
)  # fmt: skip


def differences(trained: Trained, name: str) -> list[float]:
    """Relative difference from the baseline's loss in every step."""
    return trained.differences(name, BASELINE.get(name, "single"))


def last_ten(trained: Trained, name: str) -> float:
    """Relative difference of the mean loss over the last 10 steps."""
    single = trained.losses[BASELINE.get(name, "single")]
    return abs(sum(trained.losses[name][-10:]) / sum(single[-10:]) - 1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    asked = {
        **{name: (*BASE, *how) for name, how in VARIANTS.items()},
        **{name: (*PARTS_BASE, *how) for name, how in PARTS.items()},
        **{JITTERED + name: (*TIMED_BASE, *how) for name, how in TIMED.items()},
    }
    return train_variants(tmp_path_factory.mktemp("strategies"), asked)


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
    assert {name: one.rounds_per_step if one else None for name, one in rounds.items()} == {
        "ddp": 1, "ddp_accumulated": 1, "ddp_without_no_sync": 2, "single": None,
        "task_parallel": None,
    }  # fmt: skip


def test_accumulated_uneven_shares_are_whole_disjoint_and_counted(trained: Trained) -> None:
    name = "heterogeneous_accumulated"
    ranks = trained.ranks(name)
    assert [rank.steps_completed for rank in ranks] == [50] * RANKS
    assert [rank.samples_fed for rank in ranks] == [50 * 4, 50 * 12]  # 0.3 and 0.7 of 8, twice
    folder = trained.cell(name)
    first, second = (set(read_shard(folder.shard_path(r), r).indices) for r in range(RANKS))
    assert not first & second
    every = [read_metrics(folder.metrics_path(rank)) for rank in range(RANKS)]
    for rows, samples in zip(every, (4, 12), strict=True):
        assert [row.step for row in rows] == list(range(1, 51))
        assert (rows[-1].samples, rows[-1].step_samples) == (50 * 16, samples)


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


@pytest.mark.parametrize("name", DIVIDED)
def test_a_divided_model_follows_the_loss_of_one_device(trained: Trained, name: str) -> None:
    alone = trained.losses[name.partition("/")[0]]
    assert len(alone) == len(trained.losses[name]) == PARTS_STEPS
    assert alone[0] != alone[-1]
    assert max(trained.differences(name, name.partition("/")[0])) <= EXACT


def test_losses_of_a_deterministic_cell_are_bit_identical_twice(trained: Trained) -> None:
    assert len(set(trained.losses["twin"])) == PARTS_STEPS, (
        "a loss that does not move proves nothing"
    )
    assert trained.losses["twin"] == trained.losses["twin_again"]


def test_clipping_changes_what_is_compared(trained: Trained) -> None:
    """Else the clipped variants would say nothing about the norm."""
    assert max(trained.differences("gpt2", "gpt2_clipped")) > 2 * EXACT


@pytest.mark.parametrize("name", DIVIDED)
def test_every_rank_scores_the_whole_model(trained: Trained, name: str) -> None:
    def scores_of(rank: RankSummary) -> dict[str, float | None]:
        return {k: v for k, v in rank.metrics.items() if k.startswith("val_")}

    scores = scores_of(trained.rank(name.partition("/")[0]))
    assert len(scores) == 2
    for rank in trained.ranks(name):
        assert scores_of(rank) == pytest.approx(scores, rel=EXACT)


@pytest.mark.parametrize("name", MAIN)
def test_parameters_count_whole_and_optimizer_state_by_parts_and_what_is_hidden_says_why(
    trained: Trained, name: str
) -> None:
    (alone,) = trained.ranks("gpt2")
    ranks = trained.ranks(name)
    assert [r.parameters_total for r in ranks] == [alone.parameters_total] * RANKS
    assert [r.flops_per_sample for r in ranks] == [alone.flops_per_sample] * RANKS
    whole = alone.optimizer_state_bytes
    parts = [r.optimizer_state_bytes for r in ranks]
    assert whole is not None and None not in parts
    # The tied embedding is on two stages.
    assert all(part is not None and part < 0.75 * whole for part in parts)
    if name == "gpt2/fsdp":
        assert sum(part or 0 for part in parts) == pytest.approx(whole, rel=0.01)
    assert all("exposed_comm_ms" in rank.missing for rank in ranks)
    assert all(rank.gradient_bytes is None for rank in ranks)


def test_samples_count_once_where_ranks_share_them(trained: Trained) -> None:
    parts = {name: [r.data_shard for r in trained.ranks(name)] for name in MAIN}
    assert parts == {"gpt2/fsdp": [0, 1], "gpt2/pipeline": [0, 0]}
    whole = PARTS_STEPS * 16
    fed = {name: [r.samples_fed for r in trained.ranks(name)] for name in MAIN}
    assert fed == {"gpt2/fsdp": [PARTS_STEPS * 8] * 2, "gpt2/pipeline": [whole] * 2}
    for name in MAIN:
        cell = trained.cell(name)
        shards = [read_shard(cell.shard_path(rank), rank) for rank in range(RANKS)]
        audit = audit_shards(shards, RANKS)
        assert audit.verdict == ("sharded" if name == "gpt2/fsdp" else "replicated")
        assert read_metrics(cell.metrics_path(0))[-1].samples == whole


@pytest.mark.parametrize("name", ["gpt2/pipeline", "gpt2/gpipe"])
def test_a_pipeline_times_its_microbatches_and_what_it_waits(trained: Trained, name: str) -> None:
    ranks = trained.ranks(name)
    schedule = "1f1b" if name == "gpt2/pipeline" else "gpipe"
    assert [r.pipeline for r in ranks] == [PipelineRecord(schedule, 2, s, 4) for s in range(2)]
    for rank in range(RANKS):
        timed = read_steps(trained.cell(name).steps_path(rank), rank).timed()
        forward, backward = timed.column("forward", "host"), timed.column("backward", "host")
        idle, step = timed.column("other", "host"), timed.column("step", "host")
        assert len(timed) == PARTS_STEPS - 5
        assert (forward > 0).all() and (backward > 0).all() and (idle > 0).all()
        assert (forward + backward + idle < step).all()


@pytest.mark.parametrize("name", TIMED)
def test_ranks_end_after_the_announced_step_they_knew_before(trained: Trained, name: str) -> None:
    ranks = trained.ranks(JITTERED + name)
    told = [rank.length for rank in ranks]
    assert len(ranks) == 2 and all(one is not None for one in told)
    last = told[0].announced_step  # type: ignore[union-attr]
    assert last is not None
    assert [one.announced_step for one in told if one] == [last, last]
    assert [rank.steps_completed for rank in ranks] == [last, last]
    assert ranks[0].epochs_completed > 1  # the data did not end it
    for rank, summary in enumerate(ranks):
        assert summary.length is not None and summary.length.announced_at_step is not None
        times_ms = read_steps(trained.cell(JITTERED + name).steps_path(rank), rank).column("step")
        assert times_ms[summary.length.announced_at_step :].sum() / 1e3 >= LEAST_LEAD_S
        assert times_ms[5:].sum() / 1e3 >= MIN_TIME_S
