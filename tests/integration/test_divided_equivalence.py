"""Strategies that divide the model follow one device: 20 steps, fp32, 2 ranks on gloo.

See ``test_strategy_equivalence`` for those that replicate it.
"""

import pytest

from fakes.strategy_ranks import RANKS, Trained, train_variants
from scalewise.analysis.balance import audit_shards
from scalewise.records import PipelineRecord, RankSummary, read_metrics, read_shard, read_steps

EXACT = 1e-4
"""Relative difference of the loss in any step."""

STEPS = 20
BASE = (
    "hardware=cpu", "tracking=none", "batch_size=16", f"max_steps={STEPS}", "warmup_steps=5",
    "validation=end", "log_every_n_steps=1", "model.dropout=0",
)  # fmt: skip
GPT2 = (
    "model=gpt2_tiny",
    "model.width=32",
    "model.heads=2",
    "model.context_length=16",
    "dataset=synthetic_tokens",
    "dataset.train_samples=1000",
    "dataset.validation_samples=33",  # a batch more for one rank than for the other, if cut blindly
    "optimizer=adamw",
)
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

SGD = ("optimizer=sgd", "optimizer.lr=0.02")
IN_TWO = ("batch_size=8", "accumulate_grad_batches=2")
RECOMPUTED = ("execution.activation_checkpointing=true",)
TWIN = (*GPT2, "strategy=ddp", *ON_TWO, "deterministic=true", "model.dropout=0.1")

VARIANTS: dict[str, tuple[str, ...]] = {
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
DIVIDED = [name for name in VARIANTS if "/" in name]
MAIN = ["gpt2/fsdp", "gpt2/pipeline"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return train_variants(tmp_path_factory.mktemp("divided"), VARIANTS, BASE)


@pytest.mark.parametrize("name", DIVIDED)
def test_a_divided_model_follows_the_loss_of_one_device(trained: Trained, name: str) -> None:
    alone = trained.losses[name.partition("/")[0]]
    assert len(alone) == len(trained.losses[name]) == STEPS
    assert alone[0] != alone[-1]
    assert max(trained.differences(name, name.partition("/")[0])) <= EXACT


def test_losses_of_a_deterministic_cell_are_bit_identical_twice(trained: Trained) -> None:
    assert len(set(trained.losses["twin"])) == STEPS, "a loss that does not move proves nothing"
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
        found = scores_of(rank)
        assert found == pytest.approx(scores, rel=EXACT)


@pytest.mark.parametrize("name", MAIN)
def test_parameters_count_whole_and_optimizer_state_by_parts(trained: Trained, name: str) -> None:
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


def test_samples_count_once_where_ranks_share_them(trained: Trained) -> None:
    parts = {name: [r.data_shard for r in trained.ranks(name)] for name in MAIN}
    assert parts == {"gpt2/fsdp": [0, 1], "gpt2/pipeline": [0, 0]}
    whole = STEPS * 16
    fed = {name: [r.samples_fed for r in trained.ranks(name)] for name in MAIN}
    assert fed == {"gpt2/fsdp": [STEPS * 8] * 2, "gpt2/pipeline": [whole] * 2}
    for name in MAIN:
        cell = trained.cell(name)
        shards = [read_shard(cell.shard_path(rank), rank) for rank in range(RANKS)]
        audit = audit_shards(shards, RANKS)
        assert audit.verdict == ("sharded" if name == "gpt2/fsdp" else "replicated")
        last = read_metrics(cell.metrics_path(0))[-1]
        assert last.samples == whole


@pytest.mark.parametrize("name", MAIN)
def test_hidden_communication_says_why(trained: Trained, name: str) -> None:
    for rank in trained.ranks(name):
        assert "exposed_comm_ms" in rank.missing
        assert rank.gradient_bytes is None


@pytest.mark.parametrize("name", ["gpt2/pipeline", "gpt2/gpipe"])
def test_a_pipeline_times_its_microbatches_and_what_it_waits(trained: Trained, name: str) -> None:
    ranks = trained.ranks(name)
    schedule = "1f1b" if name == "gpt2/pipeline" else "gpipe"
    assert [r.pipeline for r in ranks] == [PipelineRecord(schedule, 2, s, 4) for s in range(2)]
    folder = trained.cell(name)
    for rank in range(RANKS):
        timed = read_steps(folder.steps_path(rank), rank).timed()
        forward, backward = timed.column("forward", "host"), timed.column("backward", "host")
        idle, step = timed.column("other", "host"), timed.column("step", "host")
        assert len(timed) == STEPS - 5
        assert (forward > 0).all() and (backward > 0).all() and (idle > 0).all()
        assert (forward + backward + idle < step).all()
