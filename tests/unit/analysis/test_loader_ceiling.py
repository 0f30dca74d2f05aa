"""Which configurations a measured loader is the ceiling of, and what is said of them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.recorded import SINGLE_MS, Spec, write_sweep
from fakes.sections import cells, lines_of
from scalewise.analysis import Analysis, analyse, load_sweep
from scalewise.records import (
    DroppedFiles,
    LoaderPass,
    LoaderRate,
    LoaderRecord,
    RecordError,
    find_record,
    save_record,
)
from scalewise.report.export import results_json

TRAINED = Spec()
RATE = 12_800.0
"""Of 128 samples every 10 ms."""
LOADER = replace(TRAINED, config={"workload": "loader"})


def rate(samples_per_s: float) -> LoaderRate:
    return LoaderRate(samples_per_s, (LoaderPass(0.5, 3.0, 300, 38_400),))


def record(warm: float | None, cold: float | None = None) -> LoaderRecord:
    missing = {k: f"no {k} one" for k, v in (("warm", warm), ("cold", cold)) if v is None}
    rates = (None if one is None else rate(one) for one in (warm, cold))
    dropped = (DroppedFiles(1, 4096, 0.0, 0.5),)
    return LoaderRecord((128,), 1, *rates, dropped, missing)


def sweep(
    path: Path, found: LoaderRecord | None, trained: Spec = TRAINED, loader: Spec = LOADER
) -> Path:
    write_sweep(path, [loader, trained])
    if found is not None:
        save_record(next(path.glob("000-*")), found)
    return path


def analysed(path: Path, *given: Any) -> Analysis:
    return analyse(load_sweep(sweep(path, *given)))


@pytest.mark.parametrize(
    ("warm", "words"),
    [
        (13_900, "reaches 92% of its loaders' ceiling, 13,900 samples/s .*: the loader is the lim"),
        (25_600, "reaches 50% of its loaders' ceiling, 25,600 samples/s with a warm page cache$"),
        (10_000, "reaches 128% of .*: something slowed the loaders when they were measured"),
    ],
)
def test_training_is_told_beside_its_ceiling(tmp_path: Path, warm: float, words: str) -> None:
    found = analysed(tmp_path, record(warm))
    (ceiling,) = found.ceilings.values()
    assert ceiling.reached_share == pytest.approx(RATE / warm)
    said = lines_of(found, "loaders")
    assert [line for line in said if line.startswith("large single x1: training")] == said[-1:]
    assert re.search(words, said[-1])
    assert ("To try: load beside the training" in said[-1]) == (warm == 13_900)


def test_a_budget_names_the_ceiling_beside_what_a_step_waits(tmp_path: Path) -> None:
    slow = replace(TRAINED, phases_ms={**SINGLE_MS, "data_wait": 30.0})
    found = analysed(tmp_path, record(3_300.0), slow, replace(slow, config=LOADER.config))
    (budget,) = (found.budgets[c.config_id] for c in found.measured)
    loss = budget.loss("loader")
    assert loss is not None and loss.is_limit
    assert loss.evidence.endswith(
        "ms for its batch; its loaders give 3,300 samples/s without a model"
    )
    assert "To try" not in lines_of(found, "loaders")[-1], "the budget has it"


def test_a_cold_loader_slower_than_training_limits_a_first_epoch(tmp_path: Path) -> None:
    said = lines_of(analysed(tmp_path / "slow", record(50_000, 5_000)), "loaders")
    assert "a first epoch is limited by storage: with a cold page cache" in said[-1]
    assert said[-1].endswith("5,000 samples/s, and training takes 12,800")
    assert len(lines_of(analysed(tmp_path / "fast", record(50_000, 40_000)), "loaders")) == 1


@pytest.mark.parametrize(
    "trained",
    [
        {"batch_size": 64},
        {"host": "dmi-another"},
        {"kind": "cpu"},
        {"config": {"dataset": {"name": "tabular", "loader": {"num_workers": 2}}}},
        {"data": {"path": "12 bytes (sha256 0123456789ab)"}},
    ],
    ids=lambda one: next(iter(one)),
)
def test_other_loaders_are_no_ceiling(tmp_path: Path, trained: dict[str, Any]) -> None:
    loader = replace(LOADER, data={"path": "34 bytes (sha256 ba9876543210)"})
    found = analysed(tmp_path, record(13_900), replace(TRAINED, **trained), loader)
    assert found.ceilings == {}


def test_accumulated_batches_and_other_models_have_the_same_loader(tmp_path: Path) -> None:
    for name, trained in (
        ("model", replace(TRAINED, model="medium")),
        ("weak", replace(TRAINED, scaling="weak")),
    ):
        assert len(analysed(tmp_path / name, record(13_900), trained).ceilings) == 1


def test_the_report_shows_both_states_and_why_one_is_missing(tmp_path: Path) -> None:
    path = sweep(tmp_path, record(13_900))
    (row,) = cells(path, "loaders", "loaders")
    assert row["configuration"] == "loader tabular x1"
    assert (row["warm"], row["warm_start"], "cold" in row) == ("13,900", "0.500", False)
    assert "loader tabular x1: cold: not measured: no cold one" in lines_of(path, "loaders")
    plain = json.loads(results_json(analyse(load_sweep(path))))["configurations"]
    loader, trained = sorted(plain, key=lambda one: one["loader"] is None)
    assert loader["loader"]["warm"]["global_samples_per_s"] == 13_900
    assert trained["loader_ceiling"]["reached_share"] == pytest.approx(RATE / 13_900)


def test_a_lost_record_says_so_and_a_damaged_one_is_a_fault(tmp_path: Path) -> None:
    (ceiling,) = analysed(tmp_path / "lost", None).ceilings.values()
    assert (ceiling.warm_samples_per_s, ceiling.missing) == (
        None, {"record": "its loader.json is gone"},
    )  # fmt: skip
    path = sweep(tmp_path / "damaged", record(13_900))
    (file,) = path.glob("*/loader.json")
    file.write_text(file.read_text().replace("13900", "-1"))
    with pytest.raises(RecordError, match="global_samples_per_s"):
        find_record(file.parent, LoaderRecord)
    assert any("loader.json" in line for line in lines_of(path, "faults"))


def test_nothing_is_said_where_no_loader_was_measured(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, [TRAINED])
    assert lines_of(path, "loaders") == []
    plain = json.loads(results_json(analyse(load_sweep(path))))["configurations"][0]
    assert plain["loader_ceiling"] is None and plain["loader"] is None
