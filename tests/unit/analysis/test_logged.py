"""What modules log are figures under their own names, over seeds; rows are ranked by them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import t, ttest_ind

from fakes.recorded import DDP, Spec, edit_ranks, write_sweep
from fakes.sections import cells, lines_of
from scalewise.analysis import Analysis, Configuration, analyse, compare, csv_rows, load_sweep
from scalewise.analysis.model import Sweep
from scalewise.analysis.ranking import Objective, rank_by
from scalewise.analysis.statistics import RatioEstimate
from scalewise.records import CellFolder, MetricRow, MetricsWriter, read_metrics
from scalewise.report import build, comparison_section, side_by_side
from scalewise.report.answer import answers
from scalewise.report.export import results_json
from scalewise.report.findings import searched
from scalewise.report.page import page_data

WIDE, NARROW = (
    Spec(model="net", config={"max_steps": 60, "width": width}) for width in ("wide", "narrow")
)
ACCURACY = {"wide": [(0.80, 0.90), (0.82, 0.91), (0.81, 0.89)], "narrow": [(0.5, 0.6)] * 3}
"""Last and best of each seed."""


def log(path: Path, cell: str, *rows: Mapping[str, float | None]) -> None:
    """Has every rank of a cell log these, an epoch each, as the last of its metrics."""
    (folder,) = (CellFolder(found) for found in path.glob(cell))
    for rank in folder.ranks_with_metrics():
        writer = MetricsWriter(folder.path / "new.jsonl")
        for row in read_metrics(folder.metrics_path(rank)):
            writer.append(row)
        for epoch, values in enumerate(rows):
            writer.append(MetricRow(0.0, 60, epoch, 7680, values))
        writer.close()
        writer.path.replace(folder.metrics_path(rank))

    def told(rank: dict[str, Any]) -> None:
        rank["metrics"].update(rows[-1])
        rank["metric_rows"] += len(rows)

    edit_ranks(path, told, cell)


def seeds(spec: Spec, count: int = 3) -> list[Spec]:
    return [replace(spec, seed=seed) for seed in range(1, count + 1)]


TWO = [*seeds(WIDE), *seeds(NARROW)]


@pytest.fixture
def swept(tmp_path: Path) -> Analysis:
    write_sweep(tmp_path, TWO)
    for number in range(6):
        last, best = ACCURACY["wide" if number < 3 else "narrow"][number % 3]
        log(tmp_path, f"00{number}-*", {"val/acc": best, "a, b": 1.0}, {"val/acc": last, "a, b": 2})
    return analyse(load_sweep(tmp_path))


def interval(values: Sequence[float]) -> tuple[float, float]:
    half = t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return float(np.mean(values) - half), float(np.mean(values) + half)


def test_a_logged_metric_is_a_figure_over_seeds_in_every_file(swept: Analysis) -> None:
    wide, narrow = swept.configurations
    assert [len(one.runs) for one in (wide, narrow)] == [3, 3], "seeds are runs of one row"
    low, high = interval([last for last, _ in ACCURACY["wide"]])
    row = csv_rows(swept)[0]
    ends = [row[f"val/acc{end}"] for end in ("_low95", "", "_high95")]
    assert ends == pytest.approx([low, 0.81, high])
    assert (row["best val/acc"], row["a, b"]) == (pytest.approx(0.90), 2.0)
    assert "best a, b" not in row, "nobody knows which is better"
    assert row["val_accuracy_reached"] == pytest.approx(0.81, rel=1e-3)
    told = json.loads(results_json(swept))["configurations"][0]
    assert told["val/acc"]["interval"]["high"] == pytest.approx(high)
    assert told["measured_step_time_ms"] == pytest.approx(10.0, rel=0.01)
    assert [run["best val/acc"] for run in told["runs"]] == [0.90, 0.91, 0.89]
    table = cells(swept, "metrics", "metrics")
    assert [one["seeds"] for one in table] == ["3", "3"]
    assert table[0]["a, b"].startswith("2")


def test_what_a_run_logged_is_a_curve_of_the_page(swept: Analysis) -> None:
    first, *_ = page_data(swept)["cells"]
    assert first["logged"]["val/acc"] == ([60.0, 60.0], [0.9, 0.8])
    assert "train_loss" not in first["logged"], "that is a picture of its own"
    assert first["run"] == "seed 1"


def test_one_row_alone_tells_all_that_it_logged_under_its_own_names(tmp_path: Path) -> None:
    write_sweep(tmp_path, [WIDE])
    log(tmp_path, "000-*", {"val/acc": 0.9, "test/f1": 0.5}, {"val/acc": 0.8, "test/f1": 0.75})
    (said,) = [line for line in answers(analyse(load_sweep(tmp_path))).texts if "0.800" in line]
    assert said.endswith("val/acc 0.800, test/f1 0.750.")
    for scaling, after in (("strong", ""), ("weak", ", after unequal samples")):
        specs = [replace(one, scaling=scaling) for one in (Spec(), DDP)]
        path = write_sweep(tmp_path / scaling, specs)
        for cell in ("000-*", "001-*"):
            log(path, cell, {"val/acc": 0.625})
        (said,) = [one for one in answers(analyse(load_sweep(path))).texts if "0.625" in one]
        assert said.startswith(f"val/acc{after}: large single x1 0.625, ")


def test_a_sweep_ends_with_its_rows_ranked_by_what_they_learned(
    swept: Analysis, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = lines_of(swept, "metrics")
    assert said[0] == "By val/acc (more is better):"
    assert said[1].startswith("  1. net single x1 width=wide: 0.81")
    assert said[1].endswith("samples/s.")
    assert said[2].startswith("  2. net single x1 width=narrow: 0.5")
    assert said[3] == "net single x1 width=wide is the best."
    assert [*said] == [line for line in answers(swept).texts if line in said]
    for most, more in ((2, []), (1, ["  1 more are in the report."])):
        monkeypatch.setattr("scalewise.report.findings._MOST_RANKED", most)
        assert lines_of(swept, "metrics") == [*said[: most + 1], *more, *said[3:]]


def test_the_least_loss_is_the_best_and_zero_has_no_ratio(swept: Analysis, tmp_path: Path) -> None:
    wide, narrow = swept.configurations
    (found,) = rank_by(Objective("val/acc", "min", True), (wide, narrow))
    assert (found.rows, found.rivals, found.lead.n) == ((narrow, wide), (), (3, 3))
    assert found.lead.value == pytest.approx((0.80 * 0.82 * 0.81) ** (1 / 3) / 0.5)
    sweep = accuracies(tmp_path / "a", TWO, (0, 0.1, 0.2, 0.3, 0.4, 0.5))
    (found,) = rank_by(Objective("val/acc", "max", True), analyse(sweep).configurations)
    assert (found.rivals, found.lead) == (found.rows[1:], RatioEstimate(1.0, (3, 3), None, None))


def test_a_search_on_one_device_is_not_told_to_take_more(swept: Analysis, tmp_path: Path) -> None:
    assert searched(swept).metric == "val/acc"
    assert "devices" not in " ".join(answers(swept).texts)
    first, *_ = (build(swept, tmp_path / "r").folder / "report.md").read_text().splitlines()
    assert "val/acc" in first
    asked = replace(WIDE, config={**WIDE.config, "sweep": {"objective": "val/acc"}})
    assert searched(analyse(accuracies(tmp_path / "a", seeds(asked), (0.8, 0.8, 0.9)))) is not None
    write_sweep(tmp_path / "b", [Spec(), DDP])
    assert searched(analyse(load_sweep(tmp_path / "b"))) is None


def test_which_search_found_the_best_value_is_told_first(tmp_path: Path) -> None:
    specs = [replace(one, config={**one.config, "sweep": {"objective": "val/acc"}}) for one in TWO]
    low, near, high = (
        analyse(accuracies(tmp_path / str(at), specs, [at, at - 0.01, last] * 2))
        for at, last in ((0.4, 0.4), (0.79, 0.83), (0.8, 0.8))
    )
    for a, b, best, is_open in ((low, high, "B", 0), (high, low, "A", 0), (near, high, "A", 1)):
        first, *_ = side_by_side((a, b), [])
        assert (first.title[0], "so far" in first.title) == (best, is_open)
        assert first.texts[0].startswith(f"{best} net single x1 width=")
    uneven = [*specs[:3], *(replace(one, batch_size=32) for one in specs[3:])]
    wider = analyse(accuracies(tmp_path / "w", uneven, (0.8, 0.82, 0.81, 0.4, 0.41, 0.4)))
    assert lines_of(wider, "metrics")[3].endswith("wide is the best, after unequal samples.")
    first, *_ = side_by_side((low, wider), [])
    assert first.title == "B found the best val/acc, after unequal samples"
    invalid = replace(high, invalid=dict.fromkeys((c.config_id for c in high.measured), ()))
    assert side_by_side((low, invalid), [])[0].title == "Folders"


def test_a_reason_of_many_runs_is_told_once(tmp_path: Path) -> None:
    busy = [replace(s, foreign_cpu=0.3) if s.seed < 3 else s for s in seeds(NARROW, 8)]
    a = accuracies(tmp_path / "a", seeds(WIDE), (0.3, 0.31, 0.32))
    found = compare(a, accuracies(tmp_path / "b", busy, (0.8, 0.81, 0.82, 0.81) * 2))
    assert len({left.fault for left in found.left_out}) < len(found.left_out)
    assert len([line for line in comparison_section(found).texts if "left out" in line]) == 1


def test_a_row_tells_how_many_of_its_seeds_are_in_its_mean(tmp_path: Path) -> None:
    first, *others = seeds(WIDE)
    write_sweep(tmp_path, [replace(first, outcome="failed"), *others, *seeds(NARROW)])
    for number in range(1, 6):
        log(tmp_path, f"00{number}-*", {"val/acc": 0.5 + number / 100})
    analysis = analyse(load_sweep(tmp_path))
    by_row = {one.label: one.seeds_learned for one in analysis.configurations}
    assert sorted(by_row.values()) == [2, 3]
    (said,) = [line for line in lines_of(analysis, "metrics") if " of 3 seeds)" in line]
    assert "width=wide: 0." in said
    assert " (2 of 3 seeds), " in said
    assert {one["seeds"] for one in cells(analysis, "metrics", "metrics")} == {"2", "3"}


def test_no_other_metric_stands_in_for_an_objective_that_no_run_logged(tmp_path: Path) -> None:
    asked = {"sweep": {"objective": "val/accuracy"}}
    specs = [replace(one, config={**one.config, **asked}) for one in (WIDE, NARROW)]
    for objective, ranked in (("val/accuracy", 0), ("val/acc", 1)):
        asked["sweep"]["objective"] = objective
        said = answers(analyse(accuracies(tmp_path / objective, specs, (0.5, 0.625)))).texts
        assert sum(line.startswith("By val/acc") for line in said) == ranked
        assert sum(line.endswith(": run seed=1,2,3.") for line in said) == ranked
        assert sum(line.startswith("Run: scalewise resume ") for line in said) == ranked
        vain = [line for line in said if "sweep.objective=val/accuracy" in line]
        assert [line.endswith("allowed: val/acc, b.") for line in vain] == [True] * (1 - ranked)


def accuracies(path: Path, specs: Sequence[Spec], values: Sequence[float]) -> Sweep:
    write_sweep(path, specs)
    for number, value in enumerate(values):
        log(path, f"00{number}-*", {"val/acc": 0.9}, {"val/acc": value, "b": 1.0})
    return load_sweep(path)


def test_two_sweeps_are_compared_by_what_they_learned_seed_by_seed(tmp_path: Path) -> None:
    a = accuracies(tmp_path / "a", seeds(WIDE), (0.3, 0.5, 0.8))
    b = accuracies(tmp_path / "b", seeds(WIDE), (0.31, 0.52, 0.83))
    other = accuracies(tmp_path / "c", [replace(s, seed=s.seed + 9) for s in seeds(WIDE)],
                       (0.31, 0.52, 0.83))  # fmt: skip
    (match,) = compare(a, b).matches
    found = {one.metric: one for one in match.learned}
    assert [*found] == ["val/acc", "best val/acc", "b"]
    assert (found["val/acc"].before.value, found["val/acc"].after.value) == pytest.approx(
        (1.6 / 3, 1.66 / 3)
    )
    difference = found["val/acc"].difference
    assert (difference.interval.low, difference.interval.high) == pytest.approx(
        interval([0.01, 0.02, 0.03])
    )
    welch = ttest_ind([0.31, 0.52, 0.83], [0.3, 0.5, 0.8], equal_var=False).confidence_interval()
    apart = compare(a, other).matches[0].learned[0].difference
    assert (apart.interval.low, apart.interval.high) == pytest.approx((welch.low, welch.high))


def test_a_best_value_that_is_the_last_stands_once_beside_the_other_sweep(tmp_path: Path) -> None:
    a = accuracies(tmp_path / "a", seeds(WIDE), (0.95, 0.96, 0.97))
    table = comparison_section(compare(a, a)).table("learned")
    assert [row[0] for row in table.cells] == ["val/acc", "b"]
    later = accuracies(tmp_path / "b", seeds(WIDE), (0.5, 0.6, 0.7))
    table = comparison_section(compare(a, later)).table("learned")
    assert [row[0] for row in table.cells] == ["val/acc", "best val/acc", "b"]
    unlogged = load_sweep(write_sweep(tmp_path / "c", seeds(WIDE)))
    assert compare(a, unlogged).matches[0].learned[0].after is None


def test_repeats_of_a_seed_are_one_sample_of_what_it_learns(tmp_path: Path) -> None:
    write_sweep(tmp_path, [replace(WIDE, seed=s, repeat=r) for s in (0, 2) for r in (0, 1)])
    for number, value in enumerate((0.5, 0.5, 0.7, 0.7)):
        log(tmp_path, f"00{number}-*", {"val/acc": value})
    (config,) = analyse(load_sweep(tmp_path)).configurations
    figure, speed = config.estimate("val/acc"), config.estimate("global_samples_per_s")
    assert (figure.n, speed.n) == (2, 4)
    assert sorted(config.rounds("global_samples_per_s")) == [0, 1, 2_000_000, 2_000_001]
    assert (figure.interval.low, figure.interval.high) == pytest.approx(interval([0.5, 0.7]))


def test_what_a_disturbed_run_learned_counts_and_its_speed_does_not(tmp_path: Path) -> None:
    """Others on the host change how long a step takes, and not what it learns."""
    busy = [replace(one, foreign_cpu=0.3 if one.seed == 1 else 0.0) for one in seeds(WIDE, 4)]
    write_sweep(tmp_path, busy)
    for number in range(4):
        log(tmp_path, f"00{number}-*", {"val/acc": 0.5}, {"val/acc": 0.1 * number})
    (config,) = analyse(load_sweep(tmp_path)).configurations
    assert (len(config.runs), len(config.set_aside)) == (3, 1)
    assert (config.estimate("val/acc").n, config.estimate("global_samples_per_s").n) == (4, 3)
    assert config.estimate("val/acc").value == pytest.approx(0.15)


def test_numbers_of_devices_are_compared_seed_by_seed_whichever_they_have(tmp_path: Path) -> None:
    """Each seed has its own factor, which cancels within it. One run was disturbed, and another was
    not made on several devices."""
    ones = [replace(Spec(), seed=s, run_factor=2.0**s) for s in (1, 2, 3, 4)]
    many = [replace(DDP, seed=s, run_factor=2.0**s) for s in (2, 3, 4)]
    ones[0] = replace(ones[0], foreign_cpu=0.3)
    (pair,) = analyse(load_sweep(write_sweep(tmp_path, [*ones, *many]))).pairs
    assert (pair.speedup.paired, pair.speedup.n) == (True, (3, 3))
    assert pair.speedup.interval.high / pair.speedup.interval.low < 1.01


def test_configurations_of_one_seed_are_never_joined(tmp_path: Path) -> None:
    """Ids of two versions of the package may stand for one and the same configuration."""
    write_sweep(tmp_path, [WIDE, replace(WIDE, seed=8)])
    plan = json.loads((tmp_path / "sweep.json").read_text())
    first, second = (CellFolder(path) for path in sorted(tmp_path.glob("00*")))
    assert plan["cells"][0]["config_id"] != plan["cells"][1]["config_id"]
    second.save_config(first.load_config())
    found: Sequence[Configuration] = analyse(load_sweep(tmp_path)).configurations
    assert [len(config.runs) for config in found] == [1, 1]


def test_a_value_that_is_not_finite_is_missing_and_one_alone_is_no_best(tmp_path: Path) -> None:
    write_sweep(tmp_path, [WIDE])
    log(tmp_path, "000-*", {"val/acc": 0.5}, {"val/acc": None, "test/acc": 0.5})
    (config,) = analyse(load_sweep(tmp_path)).configurations
    (run,) = config.runs
    assert config.logged == ("val/acc", "best val/acc", "test/acc")
    assert (run.value("val/acc"), run.value("best val/acc")) == (None, 0.5)
    assert run.missing["val/acc"] == "its last value is not a finite number"
