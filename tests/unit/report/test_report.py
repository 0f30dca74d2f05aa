"""Reports of whole, poor, broken and hostile sweeps, in every form."""

import csv
import json
import os
import re
import struct
from dataclasses import replace
from io import StringIO
from pathlib import Path
from unittest.mock import Mock

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from fakes.kept_sweep import RESULTS, analysis_of, kept
from fakes.recorded import DDP, DDP_MS, SINGLE_MS, STEADY, Spec, repeats, write_sweep
from fakes.sections import printed
from scalewise.analysis import analyse, load_sweep
from scalewise.cli import main
from scalewise.records import CellFolder, RecordError
from scalewise.report import builder, plots, report_sections, study
from scalewise.report.builder import front_page
from scalewise.report.sections import Section, markdown

ALONE = {"throughput.png", "step_anatomy.png"}
PAIRED = {"answer.png", "speedup_efficiency.png", "step_anatomy.png"}


def built(path: Path) -> builder.ReportFiles:
    return builder.build(analyse(load_sweep(path)))


def text_of(files: builder.ReportFiles, name: str) -> str:
    return (files.folder / name).read_text()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two workloads, one and two GPUs, five repeats, and cells that failed or were skipped."""
    slow = replace(DDP, model="medium", slow_ranks_ms={1: 2.0})
    specs = [
        *repeats(Spec(), STEADY), *repeats(DDP, STEADY[::-1]),
        *repeats(Spec(model="medium"), STEADY), *repeats(slow, STEADY),
        replace(DDP, model="xl", outcome="failed"), replace(DDP, model="xxl", outcome="skipped"),
    ]  # fmt: skip
    return write_sweep(tmp_path_factory.mktemp("sweep"), specs)


@pytest.fixture(scope="module")
def files(whole: Path) -> builder.ReportFiles:
    return built(whole)


def test_every_file_is_written(whole: Path, files: builder.ReportFiles) -> None:
    assert (files.folder, set(files.plots)) == (whole / "report", PAIRED)
    assert not files.problems
    shown = text_of(files, "report.md")
    assert re.findall(r"\]\((\w+\.png)\)", shown)[0] == "answer.png"
    for plot in files.plots:
        data = (files.folder / plot).read_bytes()
        assert data[:8] == b"\x89PNG\r\n\x1a\n"
        width, height = struct.unpack(">II", data[16:24])
        assert 600 < width < 3000 and 200 < height < 4000
        assert f"]({plot})" in shown


def test_json_holds_every_run_and_the_ratios_follow_from_them(files: builder.ReportFiles) -> None:
    results = json.loads(text_of(files, "results.json"))
    by_label = {c["configuration"]: c for c in results["configurations"]}
    ddp, single = by_label["large ddp x2"], by_label["large single x1"]
    assert [run["repeat"] for run in ddp["runs"]] == [0, 1, 2, 3, 4]
    expected = sum(SINGLE_MS.values()) / sum(DDP_MS.values())
    assert ddp["speedup_ratio"]["value"] == pytest.approx(expected, rel=1e-4)
    assert (ddp["verdict"], single["verdict"]) == ("pays", "baseline")
    run = ddp["runs"][0]
    assert (run["throughput"]["samples"], run["shards"]["verdict"]) == (50 * 128, "sharded")
    joules = (400 + 410) / run["throughput"]["global_samples_per_s"] * 1e6
    assert run["energy_j_per_million_samples"] == pytest.approx(joules)
    assert single["comparison"] is None
    assert {u["state"] for u in results["unfinished"]} == {"failed", "skipped"}


def test_csv_has_units_and_leaves_what_is_missing_empty(files: builder.ReportFiles) -> None:
    rows = {
        row["configuration"]: row for row in csv.DictReader(StringIO(text_of(files, "results.csv")))
    }
    ddp, single, failed = (rows[n] for n in ("large ddp x2", "large single x1", "xl ddp x2"))
    assert float(ddp["global_samples_per_s"]) == pytest.approx(128 / 6.2e-3, rel=1e-3)
    assert float(ddp["exposed_comm_ms"]) == pytest.approx(0.6, rel=1e-3)
    low, high = float(ddp["speedup_ratio_low95"]), float(ddp["speedup_ratio_high95"])
    assert low < float(ddp["speedup_ratio"]) < high
    assert (single["exposed_comm_ms"], single["speedup_ratio"]) == ("", "")
    assert (failed["global_samples_per_s"], failed["verdict"]) == ("", "")
    assert "out of memory" in failed["reason"]
    assert (ddp["verdict"], single["verdict"]) == ("pays", "baseline")


def test_page_and_screen_name_what_went_wrong(whole: Path, files: builder.ReportFiles) -> None:
    page, screen = text_of(files, "details.md"), printed(whole)
    for needed in ("22 cells: 20 done, 1 failed, 1 skipped", "CUDA out of memory",
                   "wandb incomplete: 12 rows handed over, 9 read back", "20,650 (20,4",
                   "software power cap"):  # fmt: skip
        assert needed in page and needed in screen, needed
    assert "large ddp x2: pays. " in screen


def test_a_terminal_of_any_width_shows_every_figure_whole(whole: Path) -> None:
    """No cell of a table is broken over lines, and none is left out."""

    def rows(width: int) -> list[str]:
        return [x for x in printed(whole, width).splitlines() if x.startswith(" large ddp x2 ")]

    wide, narrow = (
        {word for row in rows(width) for word in re.split(r"\s{2,}", row.strip())}
        for width in (400, 80)
    )
    assert len(rows(400)) == 3  # scaling, resources and cost
    assert wide <= narrow
    assert max(map(len, printed(whole, 80).partition("large ddp x2: pays")[0].splitlines())) <= 80


def test_a_list_of_many_runs_is_folded_and_not_cut(tmp_path: Path) -> None:
    runs = [Spec(repeat=i, steps=60 + i, config={"max_steps": 60}) for i in range(30)]
    shown = printed(write_sweep(tmp_path, runs), 80)
    assert {str(50 + i) for i in range(30)} <= set(re.findall(r"\d+", shown))


HOSTILE = "=HYPERLINK(a$x^^y$ <script> ](javascript:x) ``` |b| \x1b[31m [red]\u200f" + "long" * 60


def test_names_and_messages_are_text_everywhere(tmp_path: Path, figures: dict[str, Figure]) -> None:
    named = {"model": {"name": HOSTILE}}
    specs = [Spec(model="a", config=named), replace(DDP, model="a", config=named),
             replace(Spec(), outcome="failed")]  # fmt: skip
    path = write_sweep(tmp_path, specs)
    cell = CellFolder(next(path.glob("002-*")))
    (attempt,) = cell.attempts()
    lines = ("Traceback", "```", "<script>", HOSTILE, "boom")
    cell.save_attempt(replace(attempt, message=f"boom\n# {HOSTILE}", last_lines=lines))
    files = built(path)
    assert not files.problems
    screen = printed(path)
    page = text_of(files, "report.md") + text_of(files, "details.md")
    assert "\x1b" not in screen + page + text_of(files, "results.csv")
    assert "\\x1b[31m" in screen and "=HYPERLINK(" in screen
    prose = re.compile(r"^(`{3,})text\n.*?^\1$", re.M | re.S).sub("", page)
    assert "\\x1b" in prose
    for markup in ("<script>", "](javascript:", "```", "$x", "|b|"):
        assert not re.search(rf"(?<!\\){re.escape(markup)}", prose), markup
    for row in csv.reader(StringIO(text_of(files, "results.csv"))):
        assert not any(value.startswith(("=", "+", "@")) for value in row)
    assert "speedup_efficiency.png" in figures
    _, problems = study.build_study(analyse(load_sweep(path)))
    assert not problems
    # A picture has no control character, and no name that leaves it no room.
    for figure in figures.values():
        figure.canvas.draw()  # nor is a dollar in a name mathematics
        texts = [text.get_text() for text in figure.findobj(Text)]
        assert not any("\x1b" in text or "\u200f" in text for text in texts)
        assert max(map(len, texts)) < 200


def test_a_picture_that_fails_is_one_line_and_the_report_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Figure, "savefig", Mock(side_effect=ValueError("cannot draw it")))
    path = write_sweep(tmp_path, [Spec(), DDP])
    assert main(["report", str(path)]) == 0
    warned = capsys.readouterr().err.splitlines()
    assert warned and all(line.startswith("warning: ") for line in warned)
    page = (path / "report" / "report.md").read_text()
    assert "![" not in page and "## Scaling" in page


@pytest.mark.parametrize(
    ("specs", "verdict", "plots"),
    [
        ([Spec()], "", ALONE),
        ([Spec(outcome="failed"), replace(DDP, outcome="skipped")], "", set()),
        ([Spec(outcome="waiting")], "", set()),
        ([Spec(), replace(DDP, commit="b" * 12)], "not comparable", ALONE),
        ([Spec(kind="cpu"), replace(DDP, kind="cpu")], "undecided", PAIRED),
    ],
)
def test_a_poor_sweep_still_has_a_useful_report(
    tmp_path: Path, specs: list[Spec], verdict: str, plots: set[str]
) -> None:
    path = write_sweep(tmp_path, specs)
    files = built(path)
    assert set(files.plots) == plots
    assert verdict in printed(path)
    assert verdict in text_of(files, "report.md")
    json.loads(text_of(files, "results.json"))


def test_a_plot_that_no_longer_applies_is_removed(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, [Spec(), DDP])
    assert not built(path).replaced
    (next(path.glob("001-*")) / "result.json").unlink()
    assert built(path).replaced
    assert not (path / "report" / "speedup_efficiency.png").exists()


def test_missing_and_empty_series_draw_and_write_nothing(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, [Spec(), DDP, Spec(model="medium", final_loss=float("nan"))])
    first, *others = sorted(path.glob("*/gpu/*.jsonl"))
    first.unlink()
    for series in others:
        series.write_text(series.read_text().splitlines()[0] + "\n")
    assert "diverged" in text_of(built(path), "report.md")
    names = {p.name for p in (path / "report").iterdir()}
    assert not names & {"gpu_timeline.csv", "gpu_summary.txt"}


def test_what_a_line_of_the_machine_says_stays_there(tmp_path: Path) -> None:
    """Folders are nobody's business; bytes that are no text are shown as what they are."""
    path = write_sweep(tmp_path, [Spec(), DDP])
    plan = path / "sweep.json"
    typed = '"/home/someone/train.py", "seed=caf\\udce9"'
    plan.write_text(plan.read_text().replace('"train.py"', typed))
    files = built(path)
    names = ("report.md", "details.md", "results.json", "results.csv")
    assert "train.py 'seed=caf\\udce9' -m strategy=single,ddp" in text_of(files, "report.md")
    assert not [name for name in names if "someone" in text_of(files, name)]


def test_a_failed_cell_says_at_which_line_and_in_which_log(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, [Spec(), replace(DDP, outcome="failed")])
    folder = CellFolder(path / "001-large-ddp-r0")
    (attempt,) = folder.attempts()
    folder.save_attempt(replace(attempt, raised_at="/home/user/my_model.py:12"))
    folder.log_path(1, "err").parent.mkdir()
    folder.log_path(1, "err").touch()
    lines = printed(path, width=60).splitlines()
    assert any(line.startswith("failed: 001-large-ddp-r0: rank") for line in lines)
    at = lines.index("  raised at /home/user/my_model.py:12")
    assert lines[at + 1 : at + 3] == ["  log:", f"  {folder.log_path(1, 'err')}"]
    page = text_of(built(path), "details.md")
    assert "| my_model.py:12 | 001-large-ddp-r0/logs/rank1.err |" in page
    assert str(tmp_path) not in page.partition("```text\nTraceback")[0]


def test_a_script_of_ones_own_is_advised_what_it_can_do(tmp_path: Path) -> None:
    """It has neither repeats nor strategy to set, in no file of its report."""
    specs = [Spec(config={"tracking": {"name": "monitor"}}, batch_size=size) for size in (128, 64)]
    text = text_of(built(write_sweep(tmp_path, specs)), "details.md")
    assert text.count("into the same folder") == 2
    typed = "python train.py -m strategy=single,ddp repeats=5"  # what the records say was typed
    assert typed in text
    for advice in ("repeats=", "strategy=single,ddp"):
        assert advice not in text.replace(typed, "")


def test_a_long_series_is_thinned_in_the_report(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, [Spec()])
    (series,) = path.glob("*/gpu/*.jsonl")
    header, *samples = series.read_text().splitlines()
    series.write_text("\n".join([header, *(samples * 400)]) + "\n")
    built(path)
    rows = (path / "report" / "gpu_timeline.csv").read_text().splitlines()
    assert 500 < len(rows) <= 1001
    assert rows[0].startswith("cell,timestamp,unix_time,gpu_index")


def listing(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_to_look_is_not_to_touch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = [Spec(), DDP, replace(DDP, repeat=1, outcome="interrupted")]
    sweep, out = write_sweep(tmp_path / "sweep", cells), tmp_path / "out"
    before = listing(sweep)
    assert main(["report", str(sweep), "--out", str(out), "--study"]) == 0
    assert listing(sweep) == before
    assert {"report.md", "results.json", "answer.png"} <= set(listing(out))
    assert any(name.startswith("study/") for name in listing(out))
    assert f"Report: {out}/report.html, written\n" in capsys.readouterr().out
    assert main(["report", str(sweep), "--out", str(out)]) == 0
    last = f"Report: {out}/report.html, written anew\nfinish it: scalewise resume {sweep}\n"
    assert capsys.readouterr().out.endswith(last)


def test_a_closed_folder_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep, out = write_sweep(tmp_path / "sweep", [Spec(), DDP]), tmp_path / "out"
    out.mkdir()
    (out / "report.md").write_text("of a person")
    assert main(["report", str(sweep), "--out", str(out)]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert f"--out: found {out}, which holds other files; allowed" in error
    assert listing(out) == {"report.md": b"of a person"}
    (sweep / "report").write_text("a file where the folder should be")
    assert main(["report", str(sweep)]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert "File exists; allowed: another place" in error
    with pytest.raises(RecordError, match="give the folder of a sweep"):
        built(tmp_path)


def test_no_two_ticks_are_equal() -> None:
    axes = plots.figure(4, 2).subplots()
    axes.set_xlim(12.0, 14.0)
    plots.group_thousands(axes, "x")
    long = "same" * 20
    plots.name_rows(axes, [f"{long} {word} {long}" for word in ("one", "two")])
    for axis in (axes.xaxis, axes.yaxis):
        told = [label.get_text() for label in axis.get_ticklabels()]
        assert len(set(told)) == len(told) > 1


def test_a_long_name_is_cut_wherever_it_stands_and_still_tells_rows_apart(tmp_path: Path) -> None:
    long = "y" * 300_000
    specs = [Spec(config={"note": f"{long}{end}", f"{long}": end}) for end in "ab"]
    report = built(write_sweep(tmp_path, specs)).html.parent
    assert sum(path.stat().st_size for path in report.iterdir()) < 2_400_000
    labels = {row["configuration"] for row in json.loads((report / "results.json").read_text())[
        "configurations"]}  # fmt: skip
    assert len(labels) == 2 and max(map(len, labels)) < 1000


# The first page is short, the answer first, and everything it points at is there.
def page_of(sections: list[Section]) -> str:
    return markdown("", sections, PAIRED)


@pytest.mark.parametrize("page", sorted(RESULTS.rglob("report/report.md")), ids=str)
def test_the_reports_that_the_docs_lead_to_are_those_of_today(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(RESULTS.parents[1])
    files = builder.build(analysis_of(page.parents[1].with_suffix(".zip")), tmp_path)
    for name in ("report.md", "details.md"):
        made = text_of(files, name)
        if "UPDATE_DOCS" in os.environ:
            page.with_name(name).write_text(made)
        same = made == page.with_name(name).read_text()
        assert same, "UPDATE_DOCS=1 pytest tests/unit/report/test_report.py"
    assert (tmp_path / "gpu_summary.txt").read_text().rstrip() in text_of(files, "details.md")


@pytest.mark.parametrize("name", ["cpu2_matrix", "h200x2_small"])
def test_a_matrix_of_two_models_is_told_in_few_words(name: str) -> None:
    found = analysis_of(kept(name))
    whole = report_sections(found)
    first, all_of_it = (len(page_of(one).split()) for one in (front_page(found, whole), whole))
    assert first < 800 < all_of_it


def test_a_search_shows_neither_verdicts_nor_the_studys_labels(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builder, "searched", lambda _: True)
    analysis = analyse(load_sweep(whole))
    front = front_page(analysis, report_sections(analysis))
    (speed,) = (one for one in front if one.title == "Speed")
    keys = {column.key for column in speed.table("scaling").columns}
    assert "efficiency_ratio" in keys and not keys & {"verdict", "seed_label"}


def test_every_anchor_is_a_heading(whole: Path) -> None:
    analysis = analyse(load_sweep(whole))
    whole = report_sections(analysis)
    anchors = set(re.findall(r"\(details\.md#([^)]+)\)", page_of(front_page(analysis, whole))))
    titles = {one.title for one in whole}
    assert anchors <= {re.sub(r"[^\w -]", "", t).lower().replace(" ", "-") for t in titles}
    assert {"without-a-result", "remarks"} <= anchors


def test_a_long_list_is_cut_and_says_so(tmp_path: Path) -> None:
    specs = [replace(DDP, model=f"m{i}", outcome="failed") for i in range(9)]
    sweep = load_sweep(write_sweep(tmp_path, specs))
    found = analyse(replace(sweep, problems=tuple(f"damaged {i}" for i in range(9))))
    (listed,) = (one for one in front_page(found, report_sections(found)) if one.key == "remarks")
    assert len(listed.texts) == 6
    assert "[3 more, and detail](details.md#remarks)" in page_of([listed])
