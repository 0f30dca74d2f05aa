"""The first page of a report: short, answer first, and everything it points at is there."""

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.kept_sweep import RESULTS, analysis_of, kept
from fakes.recorded import DDP, STEADY_3, Spec, repeats, write_sweep
from scalewise.analysis import Analysis, analyse, load_sweep
from scalewise.report import build, builder, report_sections
from scalewise.report.builder import front_page
from scalewise.report.sections import Section, markdown

MATRICES = ("cpu2_matrix", "h200x2_small")
MOST_WORDS = 800


@pytest.fixture(scope="module")
def analysis(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    """Two models on one and two devices, a rank that is late, and a cell that failed."""
    late = replace(DDP, model="medium", slow_ranks_ms={1: 2.0})
    specs = [
        *repeats(Spec(), STEADY_3),
        *repeats(DDP, STEADY_3),
        *repeats(Spec(model="medium"), STEADY_3),
        *repeats(late, STEADY_3),
        replace(DDP, model="xl", outcome="failed"),
    ]
    return analyse(load_sweep(write_sweep(tmp_path_factory.mktemp("sweep"), specs)))


def page_of(sections: list[Section]) -> str:
    return markdown("", sections, {"speedup_efficiency.png", "throughput.png", "step_anatomy.png"})


@pytest.mark.parametrize("page", sorted(RESULTS.rglob("report/report.md")), ids=str)
def test_the_reports_that_the_docs_lead_to_are_those_of_today(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(RESULTS.parents[1])
    files = build(analysis_of(page.parents[1].with_suffix(".zip")), tmp_path)
    for made in (files.markdown, files.details):
        if "UPDATE_DOCS" in os.environ:
            page.with_name(made.name).write_text(made.read_text())
        same = made.read_text() == page.with_name(made.name).read_text()
        assert same, "UPDATE_DOCS=1 pytest tests/unit/report/test_front_page.py"
    assert (tmp_path / "gpu_summary.txt").read_text().rstrip() in files.details.read_text()


@pytest.mark.parametrize("name", MATRICES)
def test_a_matrix_of_two_models_is_told_in_few_words(name: str) -> None:
    found = analysis_of(kept(name))
    text = page_of(front_page(found))
    assert len(text.split()) < MOST_WORDS < len(page_of(report_sections(found)).split())


def test_a_search_shows_neither_verdicts_nor_the_studys_labels(
    analysis: Analysis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builder, "searched", lambda _: True)
    (speed,) = (one for one in front_page(analysis) if one.title == "Speed")
    keys = {column.key for column in speed.table("scaling").columns}
    assert "efficiency_ratio" in keys and not keys & {"verdict", "seed_label"}


def test_every_anchor_is_a_heading(analysis: Analysis) -> None:
    anchors = set(re.findall(r"\(details\.md#([^)]+)\)", page_of(front_page(analysis))))
    titles = {one.title for one in report_sections(analysis)}
    assert anchors <= {re.sub(r"[^\w -]", "", t).lower().replace(" ", "-") for t in titles}
    assert {"without-a-result", "remarks"} <= anchors


def test_a_long_list_is_cut_and_says_so(tmp_path: Path) -> None:
    specs = [replace(DDP, model=f"m{i}", outcome="failed") for i in range(9)]
    found = analyse(load_sweep(write_sweep(tmp_path, specs)))
    found = replace(
        found, sweep=replace(found.sweep, problems=tuple(f"damaged {i}" for i in range(9)))
    )
    (listed,) = (one for one in front_page(found) if one.key == "remarks")
    assert len(listed.texts) == 6
    assert "[3 more, and detail](details.md#remarks)" in page_of([listed])
