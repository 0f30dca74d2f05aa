"""Time and cost of a number of samples: ``scalewise report FOLDER --samples N``."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from recorded import DDP, Spec, repeats, write_sweep

from scalewise import cli
from scalewise.analysis.load import load_sweep
from scalewise.analysis.summary import Analysis, analyse
from scalewise.analysis.widths import ladders
from scalewise.records import SweepFolder
from scalewise.report import build, target

RESULTS = Path(__file__).parents[3] / "docs" / "results"
PRICE = {"usd_per_hour": 3.6, "source": "invoice", "date": "2026-11"}
PRICED = {"hardware": {"name": "auto", "price": PRICE}}
TITLE = "## Time and cost of 1,000,000,000 samples\n"


def sweep(path: Path, *specs: Spec) -> Path:
    noisy = [run for spec in specs for run in repeats(spec, [1.0, 1.02, 0.98])]
    return write_sweep(path, noisy)


def analysed(path: Path, *specs: Spec) -> Analysis:
    return analyse(load_sweep(sweep(path, *specs)))


def columns(analysis: Analysis, samples: int) -> Sequence[tuple[str, ...]]:
    return target.target_table(analysis, samples).rows


def test_page_screen_and_json_have_hours_usd_and_the_prices_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = sweep(tmp_path / "sweep", *(replace(s, config=PRICED) for s in (Spec(), DDP)))
    assert cli.main(["report", str(path), "--out", str(tmp_path / "out"), "--samples", "1e9"]) == 0
    page = (tmp_path / "out" / "report.md").read_text()
    section = page.split(TITLE)[1].split("\n## ")[0]
    assert "- price: 3.60 USD per device and hour (invoice, 2026-11)\n" in section
    # 128 samples in 10 ms, at 3.60 USD an hour.
    assert "| large single x1 | 21.7 ± 1.1 | 78.1 ± 3.9 |" in section
    screen = capsys.readouterr().out
    assert "Time and cost of 1,000,000,000 samples" in screen
    assert screen.count("price: 3.60 USD per device and hour (invoice, 2026-11)") == 1
    plain = json.loads((tmp_path / "out" / "results.json").read_text())["target"]
    assert plain["samples"] == 10**9
    single, ddp = plain["configurations"]
    assert (single["devices"], ddp["devices"]) == (1, 2)
    assert ddp["usd"]["value"] == pytest.approx(ddp["hours"]["value"] * 2 * 3.6)
    assert ddp["usd"]["interval"]["low"] < ddp["usd"]["value"] < ddp["usd"]["interval"]["high"]


def test_nobody_who_did_not_ask_sees_it(tmp_path: Path) -> None:
    files = build(sweep(tmp_path, Spec(), DDP))
    assert "Time and cost of" not in files.markdown.read_text()
    assert json.loads(files.json.read_text())["target"] is None


def test_an_unknown_price_is_missing_and_never_a_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, out = RESULTS / "cpu2_matrix", tmp_path / "out"
    assert cli.main(["report", str(kept), "--out", str(out), "--samples", "1e9"]) == 0
    section = (out / "report.md").read_text().split(TITLE)[1].split("\n## ")[0]
    assert "- USD missing: a share of a CPU host has no list price\n" in section
    assert "| configuration | wall time (hours) |\n" in section
    assert "USD missing: a share of a CPU host has no list price" in capsys.readouterr().out


def test_beside_a_known_price_the_unknown_one_is_called_missing(tmp_path: Path) -> None:
    other = replace(Spec(model="medium"), device_name="Some GPU")
    rows = columns(analysed(tmp_path, replace(Spec(), config=PRICED), other), 10**9)
    assert {label: usd for label, _, usd in rows}["medium single x1"] == "missing"
    assert {label: usd for label, _, usd in rows}["large single x1"].startswith("78.1 ± ")


def test_independent_models_reach_no_target_and_stand_in_no_ladder(tmp_path: Path) -> None:
    free = replace(DDP, strategy="task_parallel", devices=4, config=PRICED)
    path = sweep(tmp_path, Spec(config=PRICED), replace(DDP, config=PRICED), free)
    for planned, folder in SweepFolder(path).cells():
        if "task_parallel" in planned.name:
            folder.save_result(replace(folder.load_result(), models=4))
    found = analyse(load_sweep(path))
    assert [pair.judgement.verdict for pair in found.pairs if pair.devices == 4] == ["ceiling"]
    labels = [label for label, *_ in columns(found, 10**9)]
    assert labels == ["large single x1", "large ddp x2"]
    assert [[width.devices for width in ladder] for ladder in ladders(found.pairs)] == [[1, 2]]


@pytest.mark.parametrize("typed", ["lots", "-5", "2.5"])
def test_what_is_no_number_is_one_line_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], typed: str
) -> None:
    path = shutil.copytree(RESULTS / "cpu2_matrix", tmp_path / "sweep")
    shutil.rmtree(path / "report")
    assert cli.main(["report", str(path), f"--samples={typed}"]) == 2
    assert capsys.readouterr().err == (
        f"scalewise report: --samples: found {typed!r}; allowed: a whole number of samples up to "
        "1e18, e.g. 1e9\n"
    )
    assert not (path / "report").exists()
