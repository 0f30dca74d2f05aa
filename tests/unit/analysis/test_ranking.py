"""The best of each number of devices, from step times and losses that are known."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from scipy.stats import t

from fakes.recorded import DDP, DDP_MS, SINGLE_MS, STEADY_3, Spec, edit_ranks, repeats, write_sweep
from fakes.sections import cells, lines_of
from scalewise.analysis import Analysis, Configuration, RatioEstimate, analyse, load_sweep
from scalewise.analysis.losses import LossCurve
from scalewise.analysis.ranking import BestOfEach, Speed, _best_over_best
from scalewise.analysis.statistics import Interval, estimate_ratio
from scalewise.records import CellFolder, MetricRow, MetricsWriter


def one(batch: int, step: float, **changes: object) -> Spec:
    """A single device whose step of ``batch`` samples takes ``step`` ms."""
    phases = {**SINGLE_MS, "forward": step - sum(SINGLE_MS.values()) + SINGLE_MS["forward"]}
    return replace(Spec(), batch_size=batch, phases_ms=phases, **changes)  # type: ignore[arg-type]


def two(batch: int, step: float, **changes: object) -> Spec:
    phases = {**DDP_MS, "forward": step - sum(DDP_MS.values()) + DDP_MS["forward"]}
    return replace(DDP, batch_size=batch, phases_ms=phases, **changes)  # type: ignore[arg-type]


BATCHES = (one(64, 8.0), one(128, 15.0), two(64, 7.0), two(128, 8.0))
"""8,000 and 8,533 samples/s on one device; 9,143 and 16,000 on two."""


def analysed(
    path: Path, specs: Sequence[Spec], factors: Sequence[Sequence[float]] = ()
) -> Analysis:
    """Of runs without a loss: they are ranked by samples/s."""
    each = factors or [STEADY_3] * len(specs)
    runs = [run for spec, own in zip(specs, each, strict=True) for run in repeats(spec, own)]
    write_sweep(path, runs)
    for file in path.glob("*/metrics/*"):
        file.unlink()
    return analyse(load_sweep(path))


def found(path: Path, specs: Sequence[Spec], **more: Sequence[Sequence[float]]) -> BestOfEach:
    (best,) = analysed(path, specs, **more).best
    return best


def batches(best: BestOfEach) -> list[int]:
    results = [row.config.runs[0].cell.result for row in best.rows]
    return [result.global_batch_size for result in results if result]


def test_the_best_batch_of_each_number_of_devices_makes_the_speedup(tmp_path: Path) -> None:
    best = found(tmp_path, BATCHES)
    alone, both = best.rows
    assert [alone.devices, both.devices] == [1, 2]
    assert batches(best) == [128, 128]
    assert [alone.candidates, both.candidates] == [2, 2]
    assert alone.speedup is None and both.speedup and both.judgement
    assert both.speedup.value == pytest.approx(16_000 / (128 / 0.015), rel=1e-3)
    assert both.judgement.verdict == "pays"


def test_unlike_batches_are_best_on_unlike_numbers(tmp_path: Path) -> None:
    """Equal batches have speedups of 1.14 and 1.89: neither is what one would use."""
    best = found(tmp_path, (one(64, 8.0), one(128, 17.0), two(64, 7.0), two(128, 9.0)))
    assert batches(best) == [64, 128]
    assert best.rows[1].speedup.value == pytest.approx(16 / 9, rel=1e-3)


def test_a_near_tie_is_left_open_and_widens_the_interval(tmp_path: Path) -> None:
    noisy = [STEADY_3, [1.03, 0.98, 1.0], STEADY_3, STEADY_3]
    best = found(tmp_path, (one(64, 8.0), one(128, 15.9), *BATCHES[2:]), factors=noisy)
    alone, both = best.rows
    assert [rival.label for rival in alone.rivals] == ["large single x1 batch_size=64"]
    assert both.rivals == ()
    assert both.speedup and both.speedup.interval
    sure = found(tmp_path / "sure", BATCHES).rows[1].speedup
    assert sure and sure.interval
    wide, narrow = (math.log(s.interval.high / s.interval.low) for s in (both.speedup, sure)
                    if s.interval)  # fmt: skip
    assert wide > narrow


def test_the_interval_is_of_the_best_whichever_it_is() -> None:
    """``max min`` of both ends, at the level of the larger side; any of the three may be best."""
    ends = {("a", "x"): (1.0, 2.0), ("a", "y"): (1.4, 1.8), ("a", "z"): (1.3, 2.2),
            ("b", "x"): (1.1, 1.7), ("b", "y"): (1.2, 1.9), ("b", "z"): (1.5, 2.5)}  # fmt: skip
    levels = set()

    def ratio(above: str, below: str, level: float) -> RatioEstimate:
        levels.add(level)
        low, high = ends[above, below]
        value = math.sqrt(low * high)
        return RatioEstimate(value, (3, 4), Interval(low, high, level), 0.1, True, 0.1, 2.0)

    speed = Speed(lambda _: 1.0, cast("object", ratio))  # type: ignore[arg-type]
    speedup = _best_over_best(
        cast("list[Configuration]", ["a", "b"]), cast("list[Configuration]", ["x", "y", "z"]), speed
    )
    assert speedup.interval == Interval(1.1, 1.8)
    assert list(levels) == [pytest.approx(1 - 0.05 / 3)]
    assert speedup.n == (3, 4)
    assert speedup.value == pytest.approx(math.sqrt(2.0))


def test_its_interval_holds_where_the_winner_was_chosen_by_noise() -> None:
    """Six equal candidates on one device: the best of them is one that was lucky."""
    generator, held, naive, times = np.random.default_rng(3), 0, 0, 300

    def runs(mean: float) -> dict[int, float]:
        return dict(enumerate(mean * np.exp(generator.normal(0, 0.05, 5))))

    speed = Speed(lambda _: 1.0, estimate_ratio)  # type: ignore[arg-type]
    for _ in range(times):
        above, below = [runs(1.8)], [runs(1.0) for _ in range(6)]
        whole = _best_over_best(above, below, speed).interval  # type: ignore[arg-type]
        luckiest = max(below, key=lambda values: sum(map(math.log, values.values())))
        chosen = estimate_ratio(above[0], luckiest).interval
        held += whole.low <= 1.8 <= whole.high
        naive += chosen.low <= 1.8 <= chosen.high
    assert held >= 0.94 * times
    assert naive < 0.94 * times


@pytest.mark.parametrize("which", [0, 1], ids=["another", "the best"])
def test_one_run_of_a_candidate_bounds_nothing(tmp_path: Path, which: int) -> None:
    factors = [STEADY_3] * 4
    factors[which] = [1.0]
    best = found(tmp_path, BATCHES, factors=factors)
    both = best.rows[1]
    assert both.speedup.interval is None
    assert both.judgement.verdict == "undecided"


def test_it_is_not_said_of_one_candidate_each(tmp_path: Path) -> None:
    assert analysed(tmp_path / "pair", (BATCHES[0], BATCHES[2])).best == ()
    assert analysed(tmp_path / "alone", BATCHES[:2]).best == ()
    several = (BATCHES[2], BATCHES[3], two(256, 12.0, strategy="fsdp"))
    assert analysed(tmp_path / "several", several).best == (), "no single device"


def test_what_differs_in_more_is_no_candidate(tmp_path: Path) -> None:
    faster = one(256, 8.0, config={"precision": {"name": "bf16-mixed"}})
    best = found(tmp_path, (*BATCHES, faster))
    assert batches(best) == [128, 128]
    assert [row.candidates for row in best.rows] == [2, 2]


def with_losses(path: Path, losses: dict[int, float], every: int = 1, noise: float = 0.0) -> None:
    """Rewrites the training loss of each cell: ``0.4 + (samples / (1000 * slower)) ** -0.5``.

    ``losses``: by global batch, how many times the samples it takes.
    """
    for folder in path.glob("*-r*"):
        cell = CellFolder(folder)
        result = cell.load_result()
        batch = result.global_batch_size
        for rank in range(result.world_size):
            file = cell.metrics_path(rank)
            file.unlink()
            writer = MetricsWriter(file)
            for step in range(every, 61, every):
                samples = step * batch
                loss = 0.4 + (samples / (1000 * losses[batch])) ** -0.5
                loss += noise * (-1) ** (step // every)
                writer.append(MetricRow(1e9 + step, step, 0, samples, {"train_loss": loss},
                                        batch // result.world_size))  # fmt: skip
            writer.close()
    edit_ranks(path, lambda rank: rank.update(metric_rows=60 // every))


def again(
    path: Path, specs: Sequence[Spec], losses: dict[int, float], every: int = 1, noise: float = 0.0
) -> Analysis:
    write_sweep(path, [run for spec in specs for run in repeats(spec, STEADY_3)])
    with_losses(path, losses, every, noise)
    return analyse(load_sweep(path))


def test_time_to_equal_loss_counts_where_it_is_told(tmp_path: Path) -> None:
    """A batch of 128 makes 1.75 times the samples/s on two devices, and needs three times them."""
    (best,) = again(tmp_path, BATCHES, {64: 1.0, 128: 3.0}).best
    assert batches(best) == [64, 64]
    assert best.rows[1].speedup.value == pytest.approx(8.0 / 7.0, rel=1e-3)
    # The same training on both numbers of devices: one place for both.
    places = {one.samples for one in best.equal_loss.reached.values()}
    assert len(places) == 2
    assert max(places) / min(places) == pytest.approx(3.0, rel=0.02)


def test_the_noise_of_batches_widens_the_speedup_between_unlike_trainings(tmp_path: Path) -> None:
    """The larger batch seems to take 1.2 times the samples; its losses do not tell that so well."""
    widths = []
    for noise in (0.0, 0.02):
        path = tmp_path / str(noise)
        (best,) = again(path, BATCHES, {64: 1.0, 128: 1.2}, noise=noise).best
        assert best.equal_loss
        assert batches(best) == [64, 128]
        widths.append(best.rows[1].speedup.interval.high / best.rows[1].speedup.interval.low)
    assert widths[1] > 1.1 * widths[0]


def test_a_larger_batch_may_reach_it_sooner_all_the_same(tmp_path: Path) -> None:
    found = again(tmp_path, BATCHES, {64: 1.0, 128: 1.2})
    (best,) = found.best
    assert batches(best) == [64, 128]
    assert best.rows[1].speedup.value == pytest.approx(16_000 / 1.2 / 8_000, rel=0.02)
    (said,) = lines_of(found, "best")
    assert "train_loss" in said
    seconds = [row.seconds_to_loss for row in best.rows]
    assert seconds[0] and seconds[1]
    assert seconds[0] / seconds[1] == pytest.approx(best.rows[1].speedup.value)


def test_what_learns_clearly_less_is_not_best(tmp_path: Path) -> None:
    """Its loss never comes down to the others': the fastest that does not learn gains nothing."""
    stuck = two(256, 8.0)
    found = again(tmp_path, (*BATCHES, stuck), {64: 1.0, 128: 1.0, 256: 400.0}, every=3)
    (best,) = found.best
    assert best.equal_loss is None
    assert batches(best) == [128, 128]
    (config,) = best.left_out
    assert config.label == "large ddp x2 batch_size=256"
    (said,) = lines_of(found, "best")
    assert said.endswith(config.label)


def test_another_precision_is_a_candidate_by_its_loss_alone(tmp_path: Path) -> None:
    half = {"precision": {"name": "bf16-mixed"}}
    specs = (*BATCHES, *(replace(spec, config=half) for spec in BATCHES))
    assert len(analysed(tmp_path, specs).best) == 2, "not compared: each precision by itself"
    (best,) = again(tmp_path / "told", specs, {64: 1.0, 128: 1.0}).best
    assert best.equal_loss
    assert [row.candidates for row in best.rows] == [4, 4]


@pytest.mark.parametrize("slower", [1.0, 2.5])
def test_samples_to_a_loss_are_read_through_the_noise_of_batches(slower: float) -> None:
    """How many times the samples of the other it takes lies in the stated interval."""
    generator, held, far, times = np.random.default_rng(5), 0, 0, 100

    def curve(batch: int, slower: float) -> LossCurve:
        at = tuple(range(4 * batch, 610 * batch, 4 * batch))
        values = 0.45 + 0.5 * (np.array(at) / slower / 2000) ** -0.7
        noise = generator.normal(0, 0.1 / math.sqrt(batch), len(at))
        return LossCurve("train_loss", "train_loss", at, tuple(values + noise))

    for _ in range(times):
        curves = curve(64, 1.0), curve(256, slower)
        level = max(c for one in curves if (c := one.lately(one.samples[-1])))
        reached = [place for one in curves if (place := one.samples_to(level))]
        assert len(reached) == 2
        error = abs(math.log(reached[1].samples / reached[0].samples / slower))
        far += error > math.log(1.02)
        held += error <= math.hypot(*(t.ppf(0.975, one.df) * one.log_error for one in reached))
    assert far >= 0.2 * times, "no interval of the speed alone would hold it"
    assert held >= 0.9 * times


def test_a_curve_that_hardly_falls_tells_no_place() -> None:
    at = tuple(range(640, 640 * 61, 640))
    noise = np.random.default_rng(6).normal(0, 0.05, len(at))
    curve = LossCurve("train_loss", "train_loss", at, tuple(0.5 + noise))
    level = curve.lately(at[40])
    assert level
    assert curve.samples_to(level) is None
    assert curve.samples_to(0.1) is None


def test_the_report_has_a_row_for_each_number_of_devices(tmp_path: Path) -> None:
    found = analysed(tmp_path, BATCHES)
    rows = cells(found, "best", "best")
    assert [row["devices"] for row in rows] == ["1", "2"]
    assert [row["best"] for row in rows] == ["batch_size=128", "ddp batch_size=128"]
    assert not [line for line in lines_of(found, "answer") if line.startswith("Fastest")]
