"""report.html: what it holds, and that no name of a record is taken for markup."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes.kept_sweep import analysis_of, kept
from fakes.recorded import Spec, analysed
from scalewise.analysis import Analysis
from scalewise.report import report_sections
from scalewise.report.page import page_data, render, thinned
from scalewise.report.sections import Table, printable

HOSTILE = "</script><img src=x onerror=alert(1)>$\\alpha$ \x1b[31m@@PLOTLY@@ <!--"


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return analysis_of(kept("h200x2_small"))


@pytest.fixture(scope="module")
def page(analysis: Analysis) -> str:
    return render("Do more devices pay?", analysis, report_sections(analysis))


def _data_text(page: str) -> str:
    return page.partition('<script type="application/json" id="data">')[2].partition("</script>")[0]


def _data(page: str) -> Any:
    return json.loads(_data_text(page))


def test_it_is_one_file_that_asks_for_nothing(page: str) -> None:
    markup = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.findall(r"(?:src|href)\s*=(?!.#)|url\(|@import", markup)
    assert "default-src 'none'" in markup
    assert len(page.encode()) < 3e6


def test_it_draws_the_figures_of_the_report(page: str, analysis: Analysis) -> None:
    drawn = {c["configuration"]: c for c in _data(page)["configurations"]}
    assert set(drawn) == {c.label for c in analysis.configurations}
    told = [f'<span class="verdict {pair.verdict.replace(" ", "-")}">' for pair in analysis.pairs]
    assert all(page.count(one) >= told.count(one) for one in told)
    for pair in analysis.pairs:
        one = drawn[pair.multi.label]
        assert one["speedup_ratio"]["value"] == pytest.approx(pair.speedup.value, rel=1e-3)
        assert len(one["speedups"]) == pair.speedup.n[0]
        assert np.exp(np.log(one["speedups"]).mean()) == pytest.approx(pair.speedup.value, rel=1e-3)
        budget = one["budget"]
        lost = sum(loss["ms"] for loss in budget["losses"])
        assert budget["ideal"] + lost == pytest.approx(budget["measured"], rel=1e-3)


def test_every_cell_has_its_steps_devices_and_difference(page: str, analysis: Analysis) -> None:
    cells = _data(page)["cells"]
    assert [c["name"] for c in cells] == [
        cell.planned.name for config in analysis.configurations for cell in config.cells
    ]
    for cell in cells:
        assert len(cell["steps"]) == len(cell["devices"]) > 0
        for began_s, _ in (rank["curve"] for rank in cell["steps"]):
            assert began_s == sorted(began_s)
        if "ddp" in cell["name"]:
            assert ["strategy.name", "ddp", "single"] in cell["differs"]


def test_a_line_of_the_answer_leads_to_all_of_its_remarks(page: str) -> None:
    answer = page.partition('id="answer"')[2].partition("</section>")[0]
    assert re.search(r'<a href="#about-remarks">\d+ remarks are in the report\.</a>', answer)
    assert '<details id="about-remarks">' in page


def test_tables_of_the_screen_alone_are_not_on_the_page(page: str, analysis: Analysis) -> None:
    tables = [b for s in report_sections(analysis) for b in s.blocks if isinstance(b, Table)]
    assert page.count("<table>") == sum(table.where != "screen" for table in tables) > 0


def test_runs_of_a_row_are_called_by_what_tells_them_apart(tmp_path: Path) -> None:
    for number, (specs, words) in enumerate([
        ([Spec(), Spec(repeat=1)], ["repeat 0", "repeat 1"]),
        ([Spec(seed=1), Spec(seed=2)], ["seed 1", "seed 2"]),
        ([Spec(seed=1), Spec(seed=2), Spec(seed=2, repeat=1)],
         ["seed 1, repeat 0", "seed 2, repeat 0", "seed 2, repeat 1"]),
    ]):  # fmt: skip
        found = page_data(analysed(tmp_path / str(number), *specs))["cells"]
        assert [cell["run"] for cell in found] == words


def test_names_stay_text(analysis: Analysis) -> None:
    configs = tuple(dataclasses.replace(c, label=HOSTILE) for c in analysis.configurations)
    sweep = dataclasses.replace(analysis.sweep, command=(HOSTILE,))
    hostile = dataclasses.replace(analysis, configurations=configs, measured=configs, sweep=sweep)
    page = render(HOSTILE, hostile, report_sections(hostile))
    assert page.count("</script>") == 3, "the page's own elements"
    assert "<img" not in re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert "<!--" not in _data_text(page)
    assert "\x1b" not in page
    assert {c["configuration"] for c in _data(page)["configurations"]} == {printable(HOSTILE)}


def test_few_points_stay_as_they_are() -> None:
    assert thinned(np.array([0.0, 1.0]), np.array([2.0, np.nan])) == ([0.0, 1.0], [2.0, None])


def test_why_nothing_was_measured_stands_on_top(tmp_path: Path) -> None:
    failed = analysed(tmp_path, Spec(outcome="failed"))
    shown = render("t", failed, report_sections(failed))
    (told,) = re.findall(r"<details open [^>]*>.*?</details>", shown, re.DOTALL)
    assert "CUDA out of memory" in told
    assert shown.index(told) < shown.index('id="filters"')
    assert shown.count("<summary>Without a result</summary>") == 1
