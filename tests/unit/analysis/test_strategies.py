"""What strategies do to a step, read from records: reductions, averaging, ceilings, choices."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from fakes.recorded import (
    DDP,
    DDP_MS,
    PIPE,
    PIPE_MS,
    SINGLE_MS,
    Spec,
    analysed,
    edit_ranks,
    pipelined,
    repeats,
    swept,
    with_ranks,
    write_sweep,
)
from fakes.sections import cells, lines_of
from scalewise.analysis import (
    IDLE,
    Configuration,
    UndecidedError,
    analyse,
    choose_strategy,
    configurations,
    load_sweep,
    number,
)
from scalewise.analysis.balance import audit_shards
from scalewise.analysis.decisions import threshold_rule
from scalewise.analysis.loss_budget import LostTime, make_budget
from scalewise.analysis.remedies import remedy
from scalewise.records import CommunicationRecord, ShardIndices, SweepFolder, to_plain

FACTORS = [1.0, 1.02, 0.98]


def with_communication(path: Path, record: CommunicationRecord, spec: Spec) -> Configuration:
    (config,) = analysed(path, spec).measured
    return replace(config, runs=(with_ranks(config.runs[0], *[{"communication": record}] * 2),))


def transfer(config: Configuration) -> LostTime:
    return make_budget(config).loss("transfer")


@pytest.mark.parametrize(
    ("rounds", "optimizer", "redundant"),
    [(4.0, None, True), (4.0, "LBFGS", False), (1.0, None, False)],
)
def test_redundant_reductions_are_named_and_answered(
    tmp_path: Path, rounds: float, optimizer: str | None, redundant: bool
) -> None:
    record = CommunicationRecord("gradients", rounds, rounds * 2**20)
    config = with_communication(tmp_path, record, DDP)
    asked_by = [{"own_optimizer": optimizer}] * 2
    config = replace(config, runs=(with_ranks(config.runs[0], *asked_by),))
    found = transfer(config)
    assert ("reduced 4 times a step" in found.evidence) == redundant
    assert (remedy(config, found).overrides == ("strategy.no_sync=true",)) == redundant


def test_averaging_of_parameters_is_a_transfer(tmp_path: Path) -> None:
    spec = replace(DDP, phases_ms={**SINGLE_MS, "other": 3.5})
    record = CommunicationRecord("parameters", 0.25, 2**20, 3.0)
    found = transfer(with_communication(tmp_path, record, spec))
    assert (found.ms, found.is_limit) == (pytest.approx(3.0), True)


def test_independent_replicas_are_a_ceiling_and_no_verdict(tmp_path: Path) -> None:
    free = replace(DDP, strategy="task_parallel", phases_ms={**DDP_MS, "exposed_comm": 0.01})
    write_sweep(tmp_path, [s for one in (Spec(), DDP, free) for s in repeats(one, FACTORS)])
    for planned, folder in SweepFolder(tmp_path).cells():
        if "task_parallel" in planned.name:
            folder.save_result(replace(folder.load_result(), models=2))
    analysis = analyse(load_sweep(tmp_path))
    labels = {c.label: c for c in analysis.measured}
    pair = analysis.pair(labels["large task_parallel x2 (2 models)"])
    assert (pair.verdict, pair.loss) == ("ceiling", None)
    assert "2 independent models, not one" in analysis.reasons[pair.multi.config_id]
    assert pair.seed_label is None, "a study about training says nothing of it"


def test_parts_of_one_replica_have_to_feed_the_same_samples() -> None:
    order = np.random.default_rng(0).permutation(100)

    def audit(*indices: Any) -> Any:
        shards = [ShardIndices(r, i, 100, True, data_shard=r // 2) for r, i in enumerate(indices)]
        return audit_shards(shards, len(shards), 10)

    half, rest = order[:50], order[50:]
    assert audit(order, order).verdict == "replicated"
    assert audit(half, half, rest, rest).verdict == "sharded"
    assert audit(half, half, half, half).verdict == "every rank sees all data"
    wrong = audit(half, rest)
    assert wrong.verdict == "not the same"
    assert "rank 1 and rank 0" in wrong.explanation


def candidates(path: Path, *specs: Spec) -> dict[str, Configuration]:
    return {str(c.name("strategy")): c for c in configurations(swept(path, *specs))}


def probed(path: Path, ddp_ms: dict[str, float]) -> dict[str, Configuration]:
    ddp = replace(DDP, phases_ms=ddp_ms)
    return candidates(path, *repeats(Spec(), FACTORS), *repeats(ddp, FACTORS[::-1]))


def test_the_faster_strategy_is_chosen_with_its_evidence(tmp_path: Path) -> None:
    decision = choose_strategy(probed(tmp_path, DDP_MS), 60, 128)
    assert decision.chosen == "ddp"
    assert 1 < decision.speedup_low < decision.speedup
    measured, chosen, baseline = decision.lines()
    assert measured.startswith("measured in 60 steps each: single x1 ")
    assert "ddp x2" in measured and "(3 runs)" in measured
    assert chosen.startswith(f"chosen: ddp; {decision.speedup:.2f} times the samples/s of single")
    assert "undecided (2,021,379 parameters: evaluate); leaves it open" in baseline


def test_one_device_is_chosen_where_more_are_slower_or_not_surely_faster(tmp_path: Path) -> None:
    slower = choose_strategy(probed(tmp_path / "a", {**DDP_MS, "exposed_comm": 40.0}), 60, 64)
    assert slower.chosen == "single"
    assert "more devices give 0." in slower.reason
    assert slower.rule.says == "single"
    assert slower.lines()[-1].endswith("; agrees")
    total, single = sum(DDP_MS.values()), sum(Spec().phases_ms.values())
    level = {**DDP_MS, "exposed_comm": DDP_MS["exposed_comm"] + single * 0.995 - total}
    doubtful = choose_strategy(probed(tmp_path / "b", level), 60, 128)
    assert doubtful.chosen == "single"
    assert "which may be no gain" in doubtful.reason


def test_a_faster_strategy_on_another_host_shows_nothing(tmp_path: Path) -> None:
    found = candidates(tmp_path, Spec(), replace(DDP, host="dmi-ffffffffffff"))
    decision = choose_strategy(found, 60, 128)
    assert (decision.chosen, decision.speedup) == ("single", None)


def test_a_candidate_without_a_figure_leaves_the_other(tmp_path: Path) -> None:
    found = candidates(tmp_path, Spec(), replace(DDP, outcome="failed"))
    decision = choose_strategy(found, 60, 128)
    assert (decision.chosen, [one.runs for one in decision.candidates]) == ("single", [1, 0])
    assert "ddp has no figure (rank 1 ran out of memory" in decision.lines()[0]
    with pytest.raises(UndecidedError, match="no strategy could be measured: ddp: rank 1"):
        choose_strategy({"ddp": found["ddp"]}, 60, 128)


@pytest.mark.parametrize(
    ("parameters", "batch", "says"),
    [
        (999_999, 512, "single"), (1_000_000, 127, "single"), (4_999_999, 128, "undecided"),
        (5_000_000, 16, "undecided"), (10_000_000, 63, "single"), (10_000_000, 64, "ddp"),
    ],
)  # fmt: skip
def test_the_baseline_is_the_rule_of_seed_000(
    parameters: int, batch: int, says: Literal["single", "ddp", "undecided"]
) -> None:
    assert threshold_rule(parameters, batch).says == says


@pytest.mark.parametrize(
    ("rounds", "more"),
    [(1.0, "; compressed to 50% of "), (2.0, "; compressed to 25% of "), (0.5 / 0.99, "")],
)
def test_the_report_says_what_was_sent(tmp_path: Path, rounds: float, more: str) -> None:
    write_sweep(tmp_path, [DDP])
    sent = to_plain(CommunicationRecord("gradients", rounds, 8_085_516 / 2))
    edit_ranks(tmp_path, lambda rank: rank.update(communication=sent))
    (line,) = lines_of(tmp_path, "sent")
    assert line == (
        f"large ddp x2: gradients averaged {number(rounds)} times a step, 3.86 MiB a rank handed "
        f"to the all-reduce{more}" + ("the gradients' 7.71 MiB" if more else "")
    )


# Idle time of pipelines, from records with known phases.
def in_stages(path: Path, spec: Spec) -> Configuration:
    (config,) = [c for c in pipelined(path, spec).measured if c.devices == 2]
    return config


def losses(config: Configuration) -> dict[str, float]:
    """The limits of these runs for themselves, in ms a step."""
    return {loss.cause: loss.ms for loss in make_budget(config).limits}


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_idle_is_what_is_neither_forward_nor_backward(tmp_path: Path, kind: str) -> None:
    config = in_stages(tmp_path, replace(PIPE, kind=kind))
    assert losses(config)["stages"] == pytest.approx(2.0, rel=0.02)


def test_stages_are_not_compared_as_if_they_did_the_same(tmp_path: Path) -> None:
    late = replace(PIPE, phases_ms={**PIPE_MS, "other": 3.0}, slow_ranks_ms={1: 3.0})
    config = in_stages(tmp_path, late)
    run = config.runs[0]
    assert run.balance is None
    assert run.missing["balance"] == "one after another"
    # The slowest stage's step is explained by the mean over stages: the rest is nobody's.
    assert set(losses(config)) == {"stages", "unexplained"}


def test_the_anatomy_calls_idle_time_what_it_is(tmp_path: Path) -> None:
    analysis = pipelined(tmp_path, PIPE)
    rows = {row["configuration"]: row for row in cells(analysis, "anatomy", "anatomy")}
    single, pipe = rows["large single x1"], rows["large pipeline x2"]
    assert (pipe[IDLE], pipe["callbacks and loops"]) == ("2.01", "-")
    assert (single[IDLE], single["callbacks and loops"]) == ("-", "0.201")
