"""report.html in a real browser: drawn, filtered, nothing fetched, nothing said on its console."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from scalewise.analysis import analyse, load_sweep
from scalewise.report import report_sections
from scalewise.report.page import render

KEPT = Path(__file__).parents[2] / "docs/results/h200x2_small"
_BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(_BROWSER is None, reason="chromium is not installed"),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    analysis = analyse(load_sweep(KEPT))
    path.write_text(render("Do more devices pay?", analysis, report_sections(analysis)))
    return path


def _shown(page: Path, fragment: str, profile: Path, size: str = "1400,6000") -> str:
    """The page's elements after its scripts have run; its console stays silent."""
    assert _BROWSER is not None
    command = [
        _BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
        "--no-first-run", "--disable-background-networking", "--disable-component-update",
        "--disable-sync", "--enable-logging=stderr", f"--user-data-dir={profile}",
        f"--window-size={size}", "--virtual-time-budget=8000", "--dump-dom",
        f"{page.as_uri()}{fragment}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=True)
    said = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    # What the page's policy forbids to fetch would be said there too.
    assert said == []
    return re.sub(r"<script.*?</script>", "", done.stdout, flags=re.DOTALL)


def test_every_picture_is_drawn(page: Path, tmp_path: Path) -> None:
    shown = _shown(page, "", tmp_path)
    assert 'data-configurations="4"' in shown
    for title in ("Speedup over one device", "Budget of losses", "Phases of a step",
                  "Step time of every run and rank", "Loss over samples",
                  "From the ideal step to the measured one"):  # fmt: skip
        assert f">{title}" in shown
    assert shown.count("<svg") >= 12


def test_a_filter_leaves_out_what_was_not_chosen(page: Path, tmp_path: Path) -> None:
    shown = _shown(page, "#model=gpt2_tiny&strategy=ddp&strategy=single", tmp_path, "500,6000")
    assert 'data-configurations="2"' in shown
    drawn = "".join(re.findall(r"<svg.*?</svg>", shown, re.DOTALL))
    assert "gpt2_tiny" in drawn
    assert "medium ddp" not in drawn
    rows = re.findall(r'<tr data-row="(medium [^"]+)"([^>]*)>', shown)
    assert rows
    assert all("hidden" in attributes for _, attributes in rows)
