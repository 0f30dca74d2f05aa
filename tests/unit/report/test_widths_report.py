"""The table of widths on page, screen and in files: for who decides how many GPUs to rent."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from recorded import DDP, DDP_MS, Spec, repeats, write_sweep
from rich.console import Console

from fakes.kept_sweep import with_known_code
from scalewise import report
from scalewise.analysis.load import load_sweep
from scalewise.analysis.summary import Analysis, analyse
from scalewise.report import tables, widths

STALLED = Path(__file__).parents[2] / "golden" / "stalled"
PRICE = {"usd_per_hour": 3.6, "source": "invoice", "date": "2026-11"}
PRICED = {"hardware": {"name": "auto", "price": PRICE}}
TITLE = "## Numbers of devices side by side\n"


def wide(devices: int, factor: float) -> Spec:
    """DDP whose forward takes ``factor`` times as long as that of two devices."""
    phases = {**DDP_MS, "forward": DDP_MS["forward"] * factor}
    return replace(DDP, devices=devices, phases_ms=phases, config=PRICED)


def four_widths(*, last: float = 0.4) -> list[Spec]:
    return [Spec(config=PRICED), wide(2, 1.0), wide(4, 0.5), wide(8, last)]


def analysed(path: Path, specs: Sequence[Spec]) -> Analysis:
    noisy = [run for spec in specs for run in repeats(spec, [1.0, 1.02, 0.98])]
    return analyse(load_sweep(write_sweep(path, noisy)))


def column(analysis: Analysis, header: str) -> list[str]:
    table = widths.widths_table(analysis)
    return [row[table.headers.index(header)] for row in table.rows]


def test_a_row_a_width_with_what_each_table_says_of_it(tmp_path: Path) -> None:
    found = analysed(tmp_path, four_widths())
    assert column(found, "configuration") == [
        "large single x1", "large ddp x2", "large ddp x4", "large ddp x8",
    ]  # fmt: skip
    scaling = tables.scaling_table(found)
    for header in ("samples/s (global)", "speedup", "efficiency", "verdict"):
        beside = [row[scaling.headers.index(header)] for row in scaling.rows]
        assert column(found, header) == beside
    single, two, *_ = column(found, "gain over the next smaller")
    assert (single, two) == ("-", column(found, "speedup")[1])
    usd = column(found, "USD per million samples")
    assert [figure.split(" ")[0] for figure in usd] == sorted(
        figure.split(" ")[0] for figure in usd
    )


def test_the_line_says_up_to_which_width_it_pays(tmp_path: Path) -> None:
    (line,) = widths.lines(analysed(tmp_path / "flat", four_widths()))
    up_to, eight = line.split("; ")
    assert (
        up_to
        == "large ddp: up to 4 devices each number makes more samples/s than the next smaller one"
    )
    assert eight.startswith(
        "8 devices are not shown to make more samples/s than 4: each of the 4 added brings 0.031 ["
    )
    assert eight.endswith("] of what one of the 4 before does")
    (slower,) = widths.lines(analysed(tmp_path / "slower", four_widths(last=1.0)))
    assert "; 8 devices make fewer samples/s than 4: each of the 4 added brings -0." in slower


def test_page_screen_and_json_have_it(tmp_path: Path) -> None:
    found = analysed(tmp_path, four_widths())
    (line,) = widths.lines(found)
    files = report.build(tmp_path)
    page = files.markdown.read_text()
    assert page.index("## Answer") < page.index(TITLE) < page.index("## Cost")
    assert f"\n- {line}\n" in page.split(TITLE)[1].split("\n## ")[0]
    text = StringIO()
    report.print_console(tmp_path, Console(file=text, width=300))
    assert line in text.getvalue()
    plain = json.loads(files.json.read_text())["numbers_of_devices"]
    assert [(one["devices"], one["next_smaller_devices"]) for one in plain] == [
        (1, None), (2, 1), (4, 2), (8, 4),
    ]  # fmt: skip
    assert plain[0]["each_added_device"] is None
    assert plain[3]["gain_over_next_smaller"]["value"] == pytest.approx(
        plain[3]["each_added_device"]["value"] + 1
    )


def test_one_and_two_devices_need_no_table_of_their_own(tmp_path: Path) -> None:
    found = analysed(tmp_path, four_widths()[:2])
    assert widths.widths_table(found).rows == ()
    files = report.build(tmp_path)
    assert TITLE not in files.markdown.read_text()
    text = StringIO()
    report.print_console(tmp_path, Console(file=text, width=300))
    assert "each added device" not in text.getvalue()
    assert len(json.loads(files.json.read_text())["numbers_of_devices"]) == 2


def test_without_a_price_there_is_no_column_of_it(tmp_path: Path) -> None:
    free = [replace(spec, config={}, kind="cpu") for spec in four_widths()]
    headers = widths.widths_table(analysed(tmp_path, free)).headers
    assert "USD per million samples" not in headers
    assert "gain over the next smaller" in headers


def test_recorded_on_four_h200_each_of_the_three_added_brings_a_third(tmp_path: Path) -> None:
    found = analyse(load_sweep(with_known_code(STALLED / "h200x4_gpt2", tmp_path / "sweep")))
    assert column(found, "each added device (x one before)") == ["-", "0.36 [0.20, 0.57]"]
    assert widths.lines(found) == [
        "gpt2 ddp: 4 devices make more samples/s than 1: each of the 3 added brings "
        "0.36 [0.20, 0.57] of what one alone does"
    ]
