"""What a report says of cost: the price with its source, what is left out, and reasons."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from recorded import DDP, DDP_MS, SINGLE_MS, Spec, repeats, write_sweep
from rich.console import Console
from scalewise.report.cost import EXCLUDED

from scalewise import report
from scalewise.report import cost

STEADY = [1.0, 1.01, 0.99, 1.005, 0.995]
OWN = {"usd_per_hour": 3.6, "source": "invoice", "date": "2026-11"}
PRICED = {"hardware": {"name": "auto", "price": OWN}}
RATIO = 2 * sum(DDP_MS.values()) / sum(SINGLE_MS.values())


def pair(config: dict[str, Any], multi: Spec = DDP, kind: str = "cuda") -> list[Spec]:
    sides = (replace(side, kind=kind, config=config) for side in (Spec(), multi))
    return [spec for side in sides for spec in repeats(side, STEADY)]


def written(path: Path, specs: Sequence[Spec]) -> report.ReportFiles:
    return report.build(write_sweep(path, specs))


def printed(path: Path) -> str:
    text = StringIO()
    report.print_console(path, Console(file=text, width=2000))
    return text.getvalue()


def answer(page: str) -> str:
    (line,) = [line for line in page.splitlines() if line.startswith("- **large ddp")]
    return line


def test_the_answer_names_cost_time_and_price(tmp_path: Path) -> None:
    page = written(tmp_path, pair(PRICED)).markdown.read_text()
    # 10 ms for 128 samples at 3.6 USD an hour, which is a thousandth of a dollar a second.
    single = 0.001 * 0.010 / 128 * 1e6
    said = answer(page)
    assert f"; 2 GPUs cost {RATIO:.2f} times as much a sample as one (95 % interval " in said
    assert f" and finish {2 / RATIO:.2f} times as soon: " in said
    assert f": {RATIO * single:.4f} USD per million samples, single {single:.4f}, at " in said
    assert said.endswith("at 3.60 USD per device and hour (invoice, 2026-11)")
    assert said.split(".** ", 1)[1] in printed(tmp_path)


def test_double_cost_is_said_of_a_beneficial_pair(tmp_path: Path) -> None:
    # A speedup of 1.11 on two devices: above both thresholds of a verdict, at 1.8 times the cost.
    slow = replace(DDP, phases_ms={**DDP_MS, "forward": DDP_MS["forward"] + 2.8})
    said = answer(written(tmp_path, pair(PRICED, slow)).markdown.read_text())
    assert "2 GPUs cost 1.80 times as much a sample as one" in said
    page = (tmp_path / "report" / "report.md").read_text()
    assert "a *beneficial* configuration may cost twice as much a sample" in page


def test_slower_devices_are_not_said_to_finish_sooner(tmp_path: Path) -> None:
    slow = replace(DDP, phases_ms={**DDP_MS, "forward": DDP_MS["forward"] + 6.3})
    said = answer(written(tmp_path, pair(PRICED, slow)).markdown.read_text())
    assert "prefer single" in said
    assert "2 GPUs cost 2.50 times as much a sample" in said
    assert "and take 1.25 times as long" in said


def test_page_and_screen_have_the_table_the_price_and_what_is_left_out(tmp_path: Path) -> None:
    page = written(tmp_path, pair(PRICED)).markdown.read_text()
    cost = page.split("\n## Cost\n")[1].split("\n## ")[0]
    assert page.index("## Answer") < page.index("## Cost") < page.index("## Scaling")
    assert "- price: 3.60 USD per device and hour (invoice, 2026-11)\n" in cost
    assert "| configuration | USD per million samples | cost of a sample (x single) |" in cost
    assert "| large ddp x2 | 0.0" in cost
    assert EXCLUDED in cost
    screen = printed(tmp_path)
    assert "price: 3.60 USD per device and hour (invoice, 2026-11)" in screen
    assert "per million samples" in screen
    assert EXCLUDED in screen


def test_without_a_price_there_is_a_reason_and_no_figure_in_usd(tmp_path: Path) -> None:
    files = written(tmp_path, pair({}, kind="cpu"))
    page, reason = files.markdown.read_text(), "a share of a CPU host has no list price"
    assert f"## Cost\n\n- no cost in USD: {reason}\n" in page
    assert "USD per million samples" not in page
    assert f"at equal prices, 2 devices cost {RATIO:.2f} times as much a sample" in answer(page)
    assert f"(no cost in USD: {reason})" in answer(page)
    assert "per million samples" not in printed(tmp_path)
    for config in json.loads(files.json.read_text())["configurations"]:
        assert config["usd_per_million_samples"] is None
        assert (config["price_of_one_device"], config["cost_missing"]) == (None, reason)
    for row in csv.DictReader(StringIO(files.csv.read_text())):
        assert row["usd_per_million_samples"] == row["usd_per_device_hour"] == ""
        assert row["price_source"] == row["usd_per_million_samples_low95"] == ""


def test_reasons_name_their_configurations_where_others_have_a_price(tmp_path: Path) -> None:
    other = replace(Spec(model="medium"), device_name="Some GPU")
    page = written(tmp_path, [*pair(PRICED), other]).markdown.read_text()
    assert "\n- large single x1, large ddp x2: price: 3.60 USD" in page
    assert "\n- medium single x1: no cost in USD: no hardware profile describes Some GPU\n" in page
    assert "\n| medium single x1 | - | - |\n" in page


def test_programs_read_cost_with_its_interval_and_unit(tmp_path: Path) -> None:
    files = written(tmp_path, pair(PRICED))
    configs = json.loads(files.json.read_text())["configurations"]
    rows = {r["configuration"]: r for r in csv.DictReader(StringIO(files.csv.read_text()))}
    assert len(configs) == 2
    for config in configs:
        usd, row = config["usd_per_million_samples"], rows[config["label"]]
        rate = config["global_samples_per_s"]["value"]
        assert usd["value"] == pytest.approx(config["devices"] * 0.001 / rate * 1e6)
        assert float(row["usd_per_million_samples"]) == pytest.approx(usd["value"])
        low, high = usd["interval"]["low"], usd["interval"]["high"]
        assert float(row["usd_per_million_samples_low95"]) == pytest.approx(low)
        assert float(row["usd_per_million_samples_high95"]) == pytest.approx(high)
        assert (row["usd_per_device_hour"], row["price_source"]) == ("3.6", "invoice, 2026-11")
        assert config["price_of_one_device"] == OWN
    single, ddp = configs
    assert (single["sample_cost_ratio"], rows[single["label"]]["sample_cost_ratio"]) == (None, "")
    assert ddp["sample_cost_ratio"]["value"] == pytest.approx(RATIO, rel=1e-3)
    assert float(rows[ddp["label"]]["sample_cost_ratio"]) == pytest.approx(RATIO, rel=1e-3)


@pytest.mark.parametrize(("usd", "shown"), [(3.6, "3.60"), (5.408, "5.408"), (12.0, "12.00")])
def test_a_price_can_be_multiplied_out(usd: float, shown: str) -> None:
    assert cost._exactly(usd) == shown
