"""The first page of a report: short, answer first, and everything it points at is there."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.kept_sweep import analysis_of, kept
from fakes.recorded import DDP, STEADY_3, Spec, repeats, write_sweep
from scalewise.analysis import Analysis, analyse, load_sweep
from scalewise.report import report_sections
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


@pytest.mark.parametrize("name", MATRICES)
def test_a_matrix_of_two_models_is_told_in_few_words(name: str) -> None:
    found = analysis_of(kept(name))
    text = page_of(front_page(found))
    assert len(text.split()) < MOST_WORDS < len(page_of(report_sections(found)).split())


def test_the_answer_is_first_and_what_is_long_is_in_detail(analysis: Analysis) -> None:
    first, details = front_page(analysis), report_sections(analysis)
    assert [one.key for one in first] == [
        "answer", "unfinished", "scaling", "losses", "remarks", "made"
    ]  # fmt: skip
    keys = [one.key for one in details]
    assert {one.key for one in first} - {"made"} < set(keys)
    assert {"anatomy", "communication", "load_balance", "remarks", "provenance"} <= set(keys)
    assert "seed_label" not in [c.key for c in first[2].table("scaling").columns]


def test_every_anchor_is_a_heading(analysis: Analysis) -> None:
    anchors = set(re.findall(r"\(details\.md#([^)]+)\)", page_of(front_page(analysis))))
    titles = {one.title for one in report_sections(analysis)}
    assert anchors <= {re.sub(r"[^\w -]", "", t).lower().replace(" ", "-") for t in titles}
    assert {"without-a-result", "remarks"} <= anchors


def test_the_parts_of_a_step_add_up_to_it(analysis: Analysis) -> None:
    table = next(one for one in front_page(analysis) if one.key == "losses").table("losses")
    assert len(table.rows) == 2
    for _, step, *parts in table.rows:
        assert sum(part or 0.0 for part in parts) == pytest.approx(step)


def test_a_word_is_explained_once_where_it_is_first_used(analysis: Analysis) -> None:
    pages = [page_of([one]) for one in front_page(analysis)]
    for word in ("Speedup", "Efficiency", "Exposed transfer", "Cell"):
        uses = [word.lower() in page.lower() for page in pages]
        assert [f"*{word}*: " in page for page in pages].index(True) == uses.index(True), word
        assert sum(page.count(f"*{word}*: ") for page in pages) == 1, word


def test_a_long_list_is_cut_and_says_so(tmp_path: Path) -> None:
    specs = [replace(DDP, model=f"m{i}", outcome="failed") for i in range(9)]
    found = analyse(load_sweep(write_sweep(tmp_path, specs)))
    found = replace(
        found, sweep=replace(found.sweep, problems=tuple(f"damaged {i}" for i in range(9)))
    )
    (listed,) = (one for one in front_page(found) if one.key == "remarks")
    assert len(listed.texts) == 6
    assert "[3 more, and detail](details.md#remarks)" in page_of([listed])
