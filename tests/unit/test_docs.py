"""What README and docs point at is there."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "results").rglob("README.md")),
]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)[^)]*\)")
ANCHORED = re.compile(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
NAMED = re.compile(r"`(?:tests/)?((?:unit|integration|gpu)/[\w/]*test_\w+\.py)`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_named_tests_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = [page.parent / link for link in LINK.findall(text)]
    targets += [ROOT / "tests" / name for name in NAMED.findall(text)]
    assert [str(path) for path in targets if not path.exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_into_a_page_name_one_of_its_headings(page: Path) -> None:
    lost = []
    for link, anchor in ANCHORED.findall(page.read_text(encoding="utf-8")):
        text = (page.parent / link if link else page).read_text(encoding="utf-8")
        slugs = {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in HEADING.findall(text)}
        lost += [f"{link}#{anchor}"] if anchor not in slugs else []
    assert lost == []


def test_the_table_of_faults_names_its_tests() -> None:
    text = (ROOT / "docs" / "sweeps.md").read_text(encoding="utf-8")
    assert len(NAMED.findall(text)) >= 13, "each fault has one"


def test_the_readme_can_be_read_at_a_sitting() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 200


def test_pictures_are_small() -> None:
    pictures = [*(ROOT / "docs" / "pictures").glob("*.png")]
    assert pictures
    assert [path.name for path in pictures if path.stat().st_size > 150_000] == []


def test_the_page_of_thresholds_says_what_the_code_does() -> None:
    made = runpy.run_path(str(ROOT / "tools" / "thresholds.py"))
    assert made["PAGE"].read_text(encoding="utf-8") == made["page"](), "python tools/thresholds.py"
