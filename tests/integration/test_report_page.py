"""report.html in a real browser: drawn, filtered, nothing fetched, nothing said on its console."""

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.browser import CHROMIUM, Browser, print_at_once
from fakes.kept_sweep import kept
from fakes.recorded import DDP, Spec, repeats, write_sweep
from scalewise.analysis import analyse, load_sweep
from scalewise.records import CellFolder
from scalewise.report import report_sections
from scalewise.report.page import render

HOSTILE = (
    "=1+$\\input{x}$ <img src=x onerror=alert(1)></script><script>fetch('http://x.test/')</script>"
    "<a href='javascript:alert(2)'>l</a> \x1b[2J [red] \u202eevil\u200f " + "long" * 60
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with closing(Browser(tmp_path_factory.mktemp("profile"))) as started:
        yield started


def _page(sweep: Path, to: Path) -> Path:
    analysis = analyse(load_sweep(sweep))
    to.write_text(render("Do more devices pay?", analysis, report_sections(analysis)))
    return to


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _page(kept("h200x2_small"), tmp_path_factory.mktemp("page") / "report.html")


def _drawn(browser: Browser) -> str:
    """The page after its scripts have run, without them; nothing was said or fetched meanwhile."""
    browser.until("document.body.dataset.configurations !== undefined")
    browser.scroll()
    assert browser.said == []
    shown: str = browser.evaluate("document.documentElement.outerHTML")
    return re.sub(r"<script.*?</script>", "", shown, flags=re.DOTALL)


def _overflow(browser: Browser) -> int:
    """Pixels by which the page is wider than its window."""
    found: int = browser.evaluate("document.documentElement.scrollWidth - innerWidth")
    return found


def test_every_picture_has_a_panel_for_each_size_of_model(browser: Browser, page: Path) -> None:
    browser.open(page, scheme="dark")
    shown = _drawn(browser)
    assert 'data-configurations="4"' in shown
    for title in ("Speedup over one device", "Efficiency", "Samples/s of all devices",
                  "Budget of losses", "Phases of a step", "Peak memory of a device",
                  "Energy of a million samples", "Cost of a million samples",
                  "Step time of every run and rank", "Spread of the ranks", "Devices: ",
                  "Loss over samples", "Loss over time",
                  "From the ideal step to the measured one"):  # fmt: skip
        assert f">{title}" in shown, title
    assert shown.count('class="main-svg"') >= 28
    for picture in ("rate", "memory", "budget", "anatomy"):
        panels = browser.evaluate(
            f"document.querySelectorAll('#{picture} .xaxislayer-above').length"
        )
        assert panels == 2, picture
    # What is drawn in dark mode has its colours: the intervals too.
    assert browser.evaluate(
        "getComputedStyle(document.querySelector('#rate .xerror')).stroke"
    ) == "rgb(236, 236, 236)"  # fmt: skip


def test_a_filter_leaves_out_what_was_not_chosen(browser: Browser, page: Path) -> None:
    browser.open(page, "#model=gpt2_tiny&strategy=ddp&strategy=single", (390, 844))
    shown = _drawn(browser)
    assert _overflow(browser) <= 0
    assert 'data-configurations="2"' in shown
    drawn = "".join(re.findall(r"<svg.*?</svg>", shown, re.DOTALL))
    assert "gpt2_tiny" in drawn
    assert "medium ddp" not in drawn
    rows = re.findall(r'<tr data-row="(medium [^"]+)"([^>]*)>', shown)
    assert rows
    assert all("hidden" in attributes for _, attributes in rows)
    # By keyboard alone: the first box is the model that the address left out.
    browser.evaluate("[...document.querySelectorAll('#answer a')].at(-1).focus()")
    browser.press("Tab")
    browser.press(" ")
    browser.until("document.body.dataset.configurations === '4'")


def test_of_many_ranks_the_median_is_drawn_each_on_demand(browser: Browser, tmp_path: Path) -> None:
    """Steps of eight seeds lie far apart, on an axis whose ticks are not equal all the same."""
    specs = [Spec(seed=seed, run_factor=3.0**seed) for seed in range(8)]
    browser.open(_page(write_sweep(tmp_path / "sweep", specs), tmp_path / "report.html"))
    _drawn(browser)
    names = "[...document.querySelectorAll('#steps .legendtext')].map((one) => one.textContent)"
    shown = browser.evaluate(names)
    assert shown[:2] == ["fastest to slowest of all ranks", "median of all ranks"]
    assert len(shown) == 2 + 8
    lines = "document.querySelectorAll('#steps .scatterlayer .trace').length"
    before = browser.evaluate(lines)
    browser.evaluate("Plotly.restyle('steps', { visible: true }, [3]).then(() => true)")
    assert browser.evaluate(lines) == before + 1
    for axis in ("x", "y"):
        per_axis = browser.evaluate(
            f"[...document.querySelectorAll('.{axis}axislayer-above')].map((one) => "
            f"[...one.querySelectorAll('.{axis}tick')].map((tick) => tick.textContent))"
        )
        assert sum(map(len, per_axis)) > 20
        assert all(len(set(told)) == len(told) for told in per_axis)


def test_what_is_printed_at_once_has_its_pictures(page: Path, tmp_path: Path) -> None:
    """Without its pictures, this page is 60 kB of PDF."""
    to = tmp_path / "page.pdf"
    print_at_once(page, to, tmp_path / "profile")
    assert to.stat().st_size > 150_000


def test_a_remark_opens_its_section_and_a_cell_its_steps_provenance_and_difference(
    browser: Browser, page: Path
) -> None:
    browser.open(page)
    _drawn(browser)
    assert not browser.evaluate("document.querySelector('#about-remarks').open")
    browser.evaluate("document.querySelector('#answer a').click()")
    assert browser.evaluate("document.querySelector('#about-remarks').open")
    browser.evaluate("document.querySelector('#cells details:nth-of-type(4)').open = true")
    browser.until("document.querySelector('#cells figure') !== null")
    browser.evaluate("document.querySelector('#cells figure').scrollIntoView()")
    browser.until("document.querySelector('#cells figure .main-svg') !== null")
    told = browser.evaluate("document.querySelector('#cells details[open]').textContent")
    for part in ("strategy.name", "torch 2.11.0", "Step time of every rank", "timed from step"):
        assert part in told
    assert browser.said == []


def test_hostile_names_and_texts_stay_text(browser: Browser, tmp_path: Path) -> None:
    one = Spec(model="a", dataset="b", config={"model": {"name": HOSTILE}})
    two = replace(DDP, model="a", dataset="b", config={"model": {"name": HOSTILE}})
    specs = [*repeats(one, [1, 1.1, 0.9]), *repeats(two, [1, 1.1, 0.9]), Spec(outcome="failed")]
    sweep = write_sweep(tmp_path / "sweep", specs)
    failed = CellFolder(next(sweep.glob("006-*")))
    (attempt,) = failed.attempts()
    failed.save_attempt(replace(attempt, message=HOSTILE, last_lines=(HOSTILE,)))
    page = _page(sweep, tmp_path / "report.html")
    for size in ((1400, 1000), (390, 844)):
        browser.open(page, size=size)
        browser.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        shown = _drawn(browser)
        assert _overflow(browser) <= 0
        assert "&lt;img src=x" in shown
        assert (
            browser.evaluate("document.querySelectorAll('img, main a[href], iframe').length") == 0
        )
        assert not re.search("[\x1b\u202e\u200f]", shown)
        # Plotly shows a `$` and an entity as they were.
        assert "$\\input" in browser.evaluate("document.querySelector('#waterfall').textContent")
