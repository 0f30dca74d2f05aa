"""Pairs, refusals, verdicts and reasons."""

import math
import shutil
import tomllib
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fakes import recorded
from fakes.recorded import DDP, DDP_MS, STEADY, Spec, analysed, edit_ranks, repeats, write_sweep
from scalewise.analysis import RatioEstimate, analyse, configurations, load_sweep, workloads
from scalewise.analysis.devices import Usage
from scalewise.analysis.doubts import clock_ratio, doubt_speedup
from scalewise.analysis.scaling import pair_all
from scalewise.analysis.statistics import Interval
from scalewise.analysis.summary import say_why
from scalewise.analysis.verdict import judge, seed_label
from scalewise.records import MetricRow, MetricsWriter

TABLES = tomllib.loads(Path(__file__).with_name("tables.toml").read_text())


def test_speedup_and_efficiency_of_a_known_pair(tmp_path: Path) -> None:
    found = analysed(tmp_path, *repeats(Spec(), STEADY), *repeats(DDP, STEADY))
    (pair,) = found.pairs
    expected = sum(recorded.SINGLE_MS.values()) / sum(DDP_MS.values())
    figures = (pair.speedup.value, pair.efficiency.value)
    assert figures == pytest.approx((expected, expected / 2), rel=1e-4)
    assert pair.speedup.interval.low < expected < pair.speedup.interval.high
    assert (pair.verdict, pair.seed_label) == ("pays", "beneficial")
    assert (pair.single.device_words, pair.multi.device_words) == ("one device", "2 devices")
    assert pair.speedup.p_value < 0.001
    assert (pair.speedup.paired, pair.speedup.n) == (True, (5, 5))
    assert "lost 1.20 ms a step: 0.600 exposed transfer" in found.reasons[pair.multi.config_id]


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("model", {"model": "medium"}), ("dataset", {"dataset": "ag_news"}),
        ("optimizer.lr", {"config": {"optimizer": {"name": "adam", "lr": 0.1}}}),
        ("precision", {"config": {"precision": {"name": "bf16-mixed"}}}),
        ("execution", {"config": {"execution": {"name": "compile"}}}),
        ("batch", {"batch_size": 256}), ("scaling", {"scaling": "weak"}),
        ("max_steps", {"steps": 80}), ("warmup_steps", {"warmup": 5}),
        ("deterministic", {"config": {"deterministic": True}}),
        ("device_model", {"device_name": "NVIDIA A10G"}),
        ("code.commit", {"commit": "ffffffffffff"}),
        ("co_tenancy", {"co_tenants": ("other-cell",)}),
        ("emulated", {"emulated": ("NCCL_P2P_DISABLE=1",)}), ("started", {"started": "forked"}),
        ("data_file.path", {"data": {"path": "200 bytes"}}),
    ],
)  # fmt: skip
def test_a_pair_that_differs_in_anything_else_is_refused_with_the_field(
    tmp_path: Path, field: str, change: dict[str, Any]
) -> None:
    found = analysed(tmp_path, Spec(data={"path": "100 bytes"}), replace(DDP, **change))
    assert found.pairs == ()
    (refused,) = found.refused
    (first, *_) = [d for d in refused.differing if d.field.startswith(field)]
    assert first.words in refused.reason or field in refused.reason


def test_cores_per_device_must_match_on_a_cpu_host(tmp_path: Path) -> None:
    assert analysed(tmp_path, Spec(kind="cpu"), replace(DDP, kind="cpu")).pairs
    edit_ranks(tmp_path, lambda rank: rank["device"].update(cores=[0, 1]), "000-*")
    (refused,) = analyse(load_sweep(tmp_path)).refused
    assert "cores of a device: 2 against 1" in refused.reason


def test_what_is_excused_does_not_refuse(tmp_path: Path) -> None:
    tracking = {"tracking": {"name": "none"}, "repeats": 3, "sweep": {"resume": "x"}}
    assert len(analysed(tmp_path, Spec(), replace(DDP, config=tracking)).pairs) == 1


def test_unknown_provenance_cannot_be_shown_to_be_equal(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, [Spec(), DDP])
    (next(path.glob("001-*")) / "provenance.json").unlink()
    (refused,) = analyse(load_sweep(path)).refused
    assert "torch: 2.13.0 against unknown" in refused.reason
    shutil.rmtree(next(path.glob("001-*")) / "steps")
    (refused,) = analyse(load_sweep(path)).refused
    assert refused.reason.startswith("no throughput of large ddp x2: "), "whatever else it lacks"


@pytest.mark.parametrize("config", [{}, {"script": {"command": ["train.py"]}, "batch_size": 1}])
def test_a_twin_that_failed_is_named_with_a_reason(tmp_path: Path, config: dict[str, Any]) -> None:
    twin = Spec(outcome="failed", config=config)
    (refused,) = analysed(tmp_path, twin, replace(DDP, config=config), Spec(model="medium")).refused
    assert "large single x1 has no run" in refused.reason
    assert "out of memory" in refused.reason


@pytest.mark.parametrize(("low", "high", "devices", "verdict", "short"), TABLES["verdicts"])
def test_a_verdict_needs_its_whole_interval_on_one_side_of_the_edge(
    low: float, high: float, devices: int, verdict: str, short: str
) -> None:
    found = judge(RatioEstimate(math.sqrt(low * high), (5, 5), Interval(low, high), 0.01), devices)
    assert (found.verdict, found.short) == (verdict, short)
    assert found.wanted == {2: 1.1, 3: 1.5, 8: 4.0}[devices]


@pytest.mark.parametrize(
    ("low", "high", "devices", "certain"),
    [(1.996, 2.3, 4, "at least 1.99"), (1.02, 1.3, 2, "at least 1.02"), (0.9, 9.0, 2, None)],
)
def test_what_is_undecided_says_what_is_wanted_and_never_an_upper_bound(
    low: float, high: float, devices: int, certain: str | None
) -> None:
    """A bound is the printed end of the interval, but never rounded onto the edge."""
    found = judge(RatioEstimate(math.sqrt(low * high), (5, 5), Interval(low, high), 0.01), devices)
    assert found.verdict == "undecided"
    assert f"{found.wanted:.2f}x is wanted" in found.reason
    assert "at most" not in found.reason
    assert (f"{certain} times as fast" in found.reason) == (certain is not None)


def test_of_too_few_runs_nothing_is_certain() -> None:
    ratio = RatioEstimate(1.9, (2, 2), Interval(1.5, 2.4), 0.01, paired=True)
    found = judge(ratio, 2, by="monitor", round_s=30.0)
    assert (found.verdict, found.more_runs) == ("undecided", 1)
    assert "a verdict needs 3; run the script 1 more time on each" in found.reason
    assert "at least 1.5" not in found.reason
    assert found.more == "at least 1 more run of each, 30 s"


@pytest.mark.parametrize(
    ("speedup", "label"),
    [(1.1, "beneficial"), (1.09, "marginal"), (0.95, "marginal"), (0.94, "single")],
)
def test_the_seeds_label(speedup: float, label: str) -> None:
    assert seed_label(speedup) == label


def logged(path: Path, cell: str, losses: Mapping[int, float], scored: float | None = None) -> None:
    """The losses that each rank of a cell logged in training, by step, and at their end."""
    rows = [MetricRow(0.0, at, 0, 128 * at, {"train_loss": loss}) for at, loss in losses.items()]
    if scored is not None:
        rows.append(replace(rows[-1], values={"val_loss": scored}))
    for metrics in path.glob(f"{cell}/metrics/rank*.jsonl"):
        metrics.unlink()
        with closing(MetricsWriter(metrics)) as writer:
            for row in rows:
                writer.append(row)
    edit_ranks(path, partial(dict.update, metric_rows=len(rows)), cell)


def test_runs_that_score_at_unequal_ends_are_compared_by_training(tmp_path: Path) -> None:
    """The mean of the last fifth of what both fed: of steps 33 to 40."""
    path = write_sweep(tmp_path, [Spec(), DDP])
    for cell, last, above in (("000-*", 60, 0.0), ("001-*", 40, 0.2)):
        logged(path, cell, {step: 9 - step / 10 + above for step in range(1, last + 1)}, 1.0)
    (pair,) = analyse(load_sweep(path)).pairs
    assert (pair.loss.samples, pair.loss.name) == (40 * 128, "train_loss (mean of the last fifth)")
    assert pair.loss.single == pytest.approx(9 - 36.5 / 10)
    assert pair.loss.multi == pytest.approx(pair.loss.single + 0.2)
    assert not pair.loss.learns_less


@pytest.mark.parametrize(
    ("every", "samples", "interpolated"),
    [(10, 40 * 128, False), (15, 52 * 128, True)],
    ids=["at the last that both logged", "on the line where they share none"],
)
def test_runs_of_unlike_lengths_are_compared_at_equal_samples(
    tmp_path: Path, every: int, samples: int, interpolated: bool
) -> None:
    """A loss that falls by as much each step is equal at equal samples, whoever logged when."""
    path = write_sweep(tmp_path, [Spec(), DDP])
    for cell, steps in (("000-*", range(0, 61, every)[1:]), ("001-*", range(4, 53, 4))):
        logged(path, cell, {step: 9 - step / 10 for step in steps})
    (pair,) = analyse(load_sweep(path)).pairs
    assert (pair.loss.samples, pair.loss.interpolated) == (samples, interpolated)
    assert pair.loss.multi == pytest.approx(pair.loss.single)


def monitored(spec: Spec, batch_a_device: int) -> Spec:
    """As the Monitor callback records it: always as weak scaling."""
    asked = {"tracking": {"name": "monitor"}, "batch_size": batch_a_device}
    return replace(spec, scaling="weak", batch_size=batch_a_device, config=asked)


@pytest.mark.parametrize(
    ("batch", "scaling", "said"),
    [
        (32, "strong", "strong scaling, equal global batches"),
        (64, "weak", "weak scaling, equal batches a device"),
    ],
)
def test_a_monitored_script_is_judged_by_the_scaling_that_its_batches_show(
    tmp_path: Path, batch: int, scaling: str, said: str
) -> None:
    single, multi = monitored(Spec(), 64), monitored(DDP, batch)
    found = analysed(tmp_path, *repeats(single, STEADY), *repeats(multi, STEADY))
    (pair,) = found.pairs
    assert pair.verdict != "undecided"
    assert f"; {said}" in say_why(replace(pair, remarks=()), found.budgets)
    assert pair.multi.identity["scaling"] == scaling
    assert {r.cell.result and r.cell.result.scaling for r in pair.multi.runs} == {scaling}
    assert pair.multi.identity["batch"] == "64"
    alone = analysed(tmp_path / "alone", *repeats(single, STEADY))
    assert [len(work.entries) for work in workloads([found, alone])] == [3 - len(found.invalid)]


def test_a_data_module_that_divides_its_batch_scales_strongly(tmp_path: Path) -> None:
    """Its loader was asked in one process, and gave what one device would get: 64."""
    asked = {"dataset": {"_target_": "mine.Data"}, "batch_size": 64}
    single, multi = (
        replace(spec, scaling="weak", batch_size=batch, config=asked)
        for spec, batch in ((Spec(), 64), (DDP, 32))
    )
    (pair,) = analysed(tmp_path, single, multi).pairs
    assert pair.multi.identity["scaling"] == "strong"
    (even,) = analysed(tmp_path / "even", single, replace(multi, batch_size=64)).pairs
    assert even.multi.identity["scaling"] == "weak"


@pytest.mark.parametrize(
    ("runs", "said"), [([1.0], "script 2 more times on"), ([1.0, 1.4, 0.7], "script again on")]
)
def test_a_script_of_ones_own_is_told_to_run_again_not_to_set_repeats(
    tmp_path: Path, runs: list[float], said: str
) -> None:
    specs = [*repeats(monitored(Spec(), 64), runs), *repeats(monitored(DDP, 32), runs[::-1])]
    (pair,) = analysed(tmp_path, *specs).pairs
    assert said in pair.judgement.reason and "repeats" not in pair.judgement.reason
    assert not pair.speedup.paired


def test_beside_one_device_of_either_batch_a_monitored_script_scales_weakly(tmp_path: Path) -> None:
    singles = [monitored(Spec(), batch) for batch in (64, 32)]
    (pair,) = analysed(tmp_path, *singles, monitored(DDP, 32)).pairs
    assert (pair.single.identity["batch"], pair.multi.identity["scaling"]) == ("32", "weak")


FASTER_THAN_LINEAR = replace(DDP, kind="cpu", phases_ms={n: ms / 3 for n, ms in DDP_MS.items()})


def test_more_than_linear_without_cause_is_invalid_and_its_interval_is_mute(tmp_path: Path) -> None:
    specs = [*repeats(Spec(kind="cpu"), STEADY), *repeats(FASTER_THAN_LINEAR, STEADY)]
    (pair,) = analysed(tmp_path, *specs).pairs
    assert (pair.verdict, pair.final.reason, pair.final.more) == ("invalid", "", "")
    assert [one.code for one in pair.invalid] == ["superlinear"]


@pytest.mark.parametrize(("runs", "multi", "codes"), [
    (1, FASTER_THAN_LINEAR, ["above_linear"]), (2, FASTER_THAN_LINEAR, ["above_linear"]),
    (2, replace(DDP, kind="cpu"), []),
])  # fmt: skip
def test_more_than_linear_from_too_few_runs_is_doubted(
    tmp_path: Path, runs: int, multi: Spec, codes: list[str]
) -> None:
    own = [1.0, 1.4][:runs]
    (pair,) = analysed(tmp_path, *repeats(Spec(kind="cpu"), own), *repeats(multi, own[::-1])).pairs
    assert pair.verdict == "undecided"
    assert [one.code for one in pair.remarks if "linear" in one.code] == codes


def test_a_higher_clock_explains_more_than_linear(tmp_path: Path) -> None:
    """A power cap holds the single GPU back: that much of the speedup is clock."""
    faster = replace(FASTER_THAN_LINEAR, kind="cuda")
    (pair,) = analysed(tmp_path, *repeats(Spec(), STEADY), *repeats(faster, STEADY)).pairs
    slow, unread = (
        tuple(replace(run, usage=clocked(run.usage, mhz)) for run in side.runs)
        for side, mhz in ((pair.single, 700.0), (pair.multi, None))
    )
    sides = replace(pair, single=replace(pair.single, runs=slow), remarks=())
    half_read = replace(sides, multi=replace(pair.multi, runs=unread))
    assert (clock_ratio(half_read), clock_ratio(sides)) == (1.0, pytest.approx(1980 / 700))
    assert doubt_speedup(sides, {}).verdict == "pays"


def clocked(usage: Usage | None, mhz: float | None) -> Usage:
    return replace(usage, devices=tuple(replace(d, sm_clock_mhz=mhz) for d in usage.devices))


def test_a_pair_that_cannot_be_computed_is_refused_and_the_others_compared(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, [Spec(), DDP, replace(DDP, devices=4)])
    single, two, four = configurations(load_sweep(path))
    (run,) = two.runs
    stood_still = replace(run, throughput=replace(run.throughput, global_samples_per_s=0.0))
    pairs, refused = pair_all([single, replace(two, runs=(stood_still,)), four])
    assert [pair.devices for pair in pairs] == [4]
    (no_pair,) = refused
    assert no_pair.config.devices == 2
    assert no_pair.reason == (
        "its speedup cannot be computed: a ratio interval needs positive values on both sides"
    )


@pytest.mark.parametrize(
    ("multi", "cells", "verdict", "quiet"),
    [
        (FASTER_THAN_LINEAR, ["*-single-*"], "undecided", ["2.90"]),
        (replace(DDP, kind="cpu"), ["*-ddp-*", "*-single-*"], "pays", []),
        (replace(DDP, kind="cpu"), ["*-single-*"], "undecided", ["0.97"]),
    ],
)
def test_what_a_crowd_could_have_made_is_undecided(
    tmp_path: Path, multi: Spec, cells: list[str], verdict: str, quiet: list[str]
) -> None:
    specs = [*repeats(Spec(kind="cpu"), STEADY), *repeats(multi, STEADY)]
    recorded.crowd(write_sweep(tmp_path, specs), *cells)
    (pair,) = analyse(load_sweep(tmp_path)).pairs
    said = [(one.code, one.figures["quiet"]) for one in pair.remarks]
    assert (pair.verdict, said) == (verdict, [("contention", one) for one in quiet])
    assert (pair.final.reason == "") == (verdict == "undecided")
