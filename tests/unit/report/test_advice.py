"""What to take, of the kept sweeps and of made-up ones: verdicts, figures, commands, refusals."""

import csv
import os
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.kept_sweep import analysis_of, kept
from fakes.recorded import DDP, SINGLE_MS, Spec, edit_ranks, repeats, write_sweep
from scalewise.analysis import analyse, load_sweep, step_parts
from scalewise.cli import main
from scalewise.config import ConfigError, conf_dir
from scalewise.report import advise
from scalewise.report.answer import answers
from scalewise.report.console import rows_of
from scalewise.report.sections import Line, Lines, Section, Table

ROOT = Path(__file__).parents[3]
SAMPLES = 10**9


def advised(path: Path, samples: int | None = SAMPLES) -> list[Section]:
    return advise(analyse(load_sweep(path)), samples)


def advised_kept(sweep: str, samples: int | None = SAMPLES) -> list[Section]:
    return advise(analysis_of(kept(sweep)), samples)


def blocks(section: Section) -> tuple[Lines, Table, list[str]]:
    """The lines that lead, the options, and the lines below."""
    lead, options, _, below = section.blocks
    assert isinstance(lead, Lines) and isinstance(options, Table) and isinstance(below, Lines)
    return lead, options, [line.text for line in below.lines]


def option(section: Section, name: str) -> Mapping[str, Any]:
    options = blocks(section)[1]
    (row,) = (row for row in options.rows if row[0] == name)
    return {column.key: value for column, value in zip(options.columns, row, strict=True)}


@pytest.mark.parametrize(
    ("sweep", "word", "rows"),
    [
        ("h200x2_gpt2", "take 2 devices", {"single x1": "baseline", "ddp x2": "pays"}),
        ("h200x2_strategies", "cannot tell", {"single x1": "baseline"} | dict.fromkeys(
            ("gpipe x2", "fsdp x2", "pipeline x2", "tensor x2", "ddp x2"), "undecided")),
        ("h200_measuring/x1/precisions", "cannot tell",
         {"single x1 precision=fp16-mixed": "baseline", "single x1 precision=tf32": "baseline"}),
    ],
)  # fmt: skip
def test_a_kept_sweep_is_advised_by_verdicts(sweep: str, word: str, rows: dict[str, str]) -> None:
    (section,) = advised_kept(sweep)
    lead, options, _ = blocks(section)
    verdict = [column.key for column in options.columns].index("verdict")
    assert (lead.lines[0].verdict, {row[0]: row[verdict] for row in options.rows}) == (word, rows)


def test_every_published_row_has_a_source_and_no_row_more_than_its_devices_by_far() -> None:
    with (conf_dir() / "published_scaling.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 100
    for row in rows:
        low, high = float(row["speedup_low"]), float(row["speedup_high"])
        assert 0 < low <= high < 1.05 * int(row["devices"])
        assert int(row["parameters"]) > 0 and row["kind"] in row["gpu"]
        assert "." in row["sources"].partition("/")[0] or row["sources"].startswith("https://")


def test_each_workload_has_its_own_answer_and_nothing_of_models_far_larger() -> None:
    found = advised_kept("h200x2_small")
    assert [blocks(one)[0].lines[0].verdict for one in found] == ["take one device", "cannot tell"]
    assert [one.title for one in found] == ["medium, tabular", "gpt2_tiny, stdlib"]
    below = [text for section in found for text in blocks(section)[2]]
    told = [text for text in below if "Published" in text or " x RTX " in text]
    assert not told, "it is of models far larger"


def test_time_and_money_are_of_all_devices_measured_or_rehearsed() -> None:
    (section,) = advised_kept("h200x2_gpt2")
    one, two = option(section, "single x1"), option(section, "ddp x2")
    assert (one["hours"], one["usd"]) == (pytest.approx(708.5, abs=0.1), pytest.approx(3832, abs=1))
    assert (two["hours"], two["usd"]) == (pytest.approx(391.9, abs=0.1), pytest.approx(4238, abs=1))
    assert two["memory"] == "15.4 of 140"
    (section,) = advised_kept("rehearsal/sized_x4_nvlink")
    played, alone = option(section, "ddp x2, rehearsed over doctor"), option(section, "single x1")
    assert (played["basis"], played["verdict"]) == ("rehearsed", "likely pays")
    assert played["hours"] == pytest.approx(alone["hours"] / played["times"].value, rel=1e-3)
    assert played["usd"] / alone["usd"] == pytest.approx(2 / played["times"].value, rel=1e-3)
    # Without a price there is no cost, and the reason is said.
    (section,) = advised_kept("rehearsal/gpt2_p2p_off")
    assert "usd" not in option(section, "ddp x2")
    assert any("USD missing" in text for text in section.texts)


@pytest.mark.parametrize("samples", [None, SAMPLES])
@pytest.mark.parametrize(
    "sweep", ["h200x2_gpt2", "cpu2_matrix", "rehearsal/gpt2_p2p_off", "rehearsal/sized_x4_nvlink"]
)
def test_what_to_take_stands_in_four_lines_of_a_terminal(sweep: str, samples: int | None) -> None:
    for section in advised_kept(sweep, samples):
        rows = [row for found in rows_of(blocks(section)[0], 80) for row in found]
        assert 2 <= len(rows) <= 4 and max(map(len, rows)) <= 80


def test_each_configuration_of_an_answer_begins_at_the_margin() -> None:
    a, b = (Line("It differs.", name, "not comparable") for name in "ab")
    told = rows_of(Lines((a, Line("Next: run both again."), b), "answer"), 80)
    assert [row[0] for (row,) in told] == ["a", " ", "b"]


def test_what_one_run_says_wins_nothing_and_what_would_tell_is_said() -> None:
    lead, _, below = blocks(advised_kept("h200x2_strategies")[0])
    assert below[:1] == ["Nothing here is shown to win over one device."]
    assert "scalewise resume" in lead.lines[-1].text
    _, _, below = blocks(advised_kept("h200_measuring/x1/precisions")[0])
    assert any("strategy=single,ddp" in shlex.split(line) for line in below)


def faster(name: str, by: float) -> Spec:
    """An execution with less time for forward and backward."""
    ms = {k: v / by if k in ("forward", "backward") else v for k, v in SINGLE_MS.items()}
    return replace(Spec(), phases_ms=ms, config={"execution": {"name": name}})


def test_three_changes_at_most_the_one_that_wins_most_first(tmp_path: Path) -> None:
    half = {**SINGLE_MS, "forward": 1.0, "backward": 1.0}
    precise = replace(Spec(), phases_ms=half, config={"precision": {"name": "bf16-mixed"}})
    write_sweep(tmp_path, [spec for one in (
        Spec(), faster("compile", 1.5), faster("cudagraph", 1.2), precise, DDP
    ) for spec in repeats(one)])  # fmt: skip
    lead, _, below = blocks(advised(tmp_path, None)[0])
    assert lead.lines[1].text == "A sample costs 1.77x that on one device.", "on the fastest"
    found = [text for text in below if text[:1].isdigit()]
    whats = ("precision=bf16-mixed", "2 devices, ddp", "execution=compile")
    assert all(what in text for text, what in zip(found, whats, strict=True))
    assert "compare what it learns" in found[0]


@pytest.mark.parametrize(
    ("step_ms", "config", "word"),
    [
        (5.2, {}, "take 2 devices"), (3.0, {}, "take one device"), (3.41, {}, "cannot tell"),
        (3.0, {"model": {"name": "large", "width": 8}}, "take 2 devices"),  # another training
    ],
)  # fmt: skip
def test_what_pays_at_its_batch_has_to_beat_the_fastest_single_device(
    tmp_path: Path, step_ms: float, config: dict[str, Any], word: str
) -> None:
    """Two devices make 20,645 samples/s, one of their batch 12,800, and one of half of it more."""
    phases = {name: ms * (step_ms / sum(SINGLE_MS.values())) for name, ms in SINGLE_MS.items()}
    other = replace(Spec(), batch_size=64, phases_ms=phases, config=config)
    write_sweep(tmp_path, [spec for one in (Spec(), DDP, other) for spec in repeats(one)])
    (section,) = advised(tmp_path)
    first = blocks(section)[0].lines[0]
    over_faster = " over the faster single x1" in first.text
    assert (first.verdict, over_faster) == (word, word != "take 2 devices")
    (two,) = (row[0] for row in blocks(section)[1].rows if row[0].startswith("ddp x2"))
    assert option(section, two)["verdict"] == "pays"


def test_why_the_next_number_of_devices_is_not_taken_is_said(tmp_path: Path) -> None:
    each = (Spec(), DDP, replace(DDP, devices=4))
    write_sweep(tmp_path, [run for one in each for run in repeats(one)])
    taken, more, *_ = (line.text for line in blocks(advised(tmp_path)[0])[0].lines)
    assert taken.startswith("ddp x2: ") and more.startswith("4 do not pay: 1.61x where 2.00x ")


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every GPU has a kernel all the time, as its samples would say."""
    monkeypatch.setattr(step_parts, "_activity", lambda usage: dict.fromkeys(range(8), 1.0))


def rehearsed(path: Path, runs: int) -> list[Section]:
    """One device, and a rehearsal of eight that takes as long for its share of the batch."""
    link = {"name": "pcie", "ranks": 2, "points": [[1, 0.1], [2**30, 10.0]], "source": "a doctor"}
    strategy = {"name": "ddp_rehearsed", "kind": "rehearsal", "ranks": 8, "link": link}
    quarter = {name: ms / 6 for name, ms in SINGLE_MS.items()}
    play = replace(
        Spec(), strategy="ddp_rehearsed", batch_size=16, phases_ms=quarter,
        config={"strategy": strategy, "batch_size": 128}, typed=("model.repeats=1", "repeats=1"),
    )  # fmt: skip
    write_sweep(path, [*repeats(Spec()), *repeats(play)[:runs]])
    record = {"ranks": 8, "link": "pcie", "source": "a doctor"}
    edit_ranks(path, lambda one: one.update(rehearsed=record), "*ddp_rehearsed*")
    return advised(path)


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize(("runs", "word"), [(3, "likely pays"), (2, "cannot tell")])
def test_what_is_rehearsed_alone_is_no_measurement(tmp_path: Path, runs: int, word: str) -> None:
    (section,) = rehearsed(tmp_path, runs)
    lead, _, below = blocks(section)
    assert lead.lines[0].verdict == "cannot tell"
    assert f", {word}" in lead.lines[1].text
    assert option(section, "ddp x8, rehearsed over pcie")["verdict"] == word
    assert any(text.startswith("1. ddp x8") for text in below) == (word == "likely pays")
    (way,) = (text for text in below if text.startswith("  Run: "))
    assert way.endswith(" model.repeats=1 repeats=3"), "one run decides nothing"


PLAYED = Spec(strategy="play", config={"strategy": {"kind": "rehearsal"}})


@pytest.mark.parametrize(
    ("lost", "told"),
    [
        (replace(DDP, outcome="failed"), "Out of memory: 003-large-ddp-r0."),
        (replace(DDP, outcome="skipped"), "skipped: 003-large-ddp-r0, 004-large-ddp-r1: strategy"),
        (replace(PLAYED, outcome="failed"), "Out of memory: 003-large-play-r0."),
    ],
)
def test_what_did_not_run_is_named_and_its_command_not_offered_again(
    tmp_path: Path, lost: Spec, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_sweep(tmp_path, [*repeats(Spec()), lost, replace(lost, repeat=1, outcome="skipped")])
    assert main(["advise", str(tmp_path)]) == 0
    way = f"mend it, then:\n  scalewise resume {tmp_path}\n"
    assert (way in capsys.readouterr().out) == (lost.outcome == "failed")
    lead, _, below = blocks(advised(tmp_path)[0])
    assert lead.lines[0].text.startswith("No cell on several devices finished")
    assert below[-1].startswith(told)
    assert not [x for x in below[:-1] if x.startswith(("skipped: ", "Out of ", "  Run:"))]


def test_no_single_device_and_an_invalid_one_are_refused(tmp_path: Path) -> None:
    write_sweep(tmp_path / "none", repeats(DDP))
    with pytest.raises(ConfigError, match="single-device cell: found none; allowed"):
        advised(tmp_path / "none")
    write_sweep(tmp_path / "lost", [replace(Spec(), outcome="failed"), *repeats(DDP)])
    with pytest.raises(ConfigError, match="found none; failed: 000-large-single-r0: rank "):
        advised(tmp_path / "lost")
    write_sweep(tmp_path / "bad", [*repeats(Spec()), *repeats(DDP)])
    unchanged = {"parameters_changed": False}
    edit_ranks(tmp_path / "bad", lambda one: one.update(unchanged), "*ddp*")
    invalid = option(advised(tmp_path / "bad")[0], "ddp x2")
    assert (invalid["verdict"], "times" in invalid) == ("invalid", False), "nor has another row"
    edit_ranks(tmp_path / "bad", lambda one: one.update(unchanged), "*single*")
    with pytest.raises(ConfigError, match="found an invalid one: ") as error:
        advised(tmp_path / "bad")
    again = f"scalewise resume {tmp_path / 'bad'} sweep.rerun=all"
    assert again in str(error.value) and len(str(error.value).splitlines()) == 1
    said = answers(analyse(load_sweep(tmp_path / "bad"))).texts
    assert [again in line for line in said if line.startswith("Next: ")] == [True]
    three = [*repeats(faster("compile", 9.0)), *repeats(Spec()), *repeats(DDP)]
    write_sweep(tmp_path / "beside", three)
    edit_ranks(tmp_path / "beside", lambda one: one.update(unchanged), "00[0-2]-*")
    assert blocks(advised(tmp_path / "beside")[0])[0].lines[0].verdict == "take 2 devices"
    edit_ranks(tmp_path / "beside", lambda one: one.update(unchanged), "*ddp*")
    assert ": 21.7 hours, " in blocks(advised(tmp_path / "beside")[0])[0].lines[1].text


def test_records_that_cannot_be_read_are_named_and_no_command_is_made_up(tmp_path: Path) -> None:
    write_sweep(tmp_path, [*repeats(Spec()), *repeats(DDP)])
    (result,) = tmp_path.glob("*single-r0/result.json")
    result.write_text("{")
    (tmp_path / "sweep.json").write_text("{")
    below = blocks(advised(tmp_path)[0])[2]
    assert any(one.startswith("Fault: ") for one in below) and not any("Run:" in x for x in below)
    for result in tmp_path.glob("*single-r*/result.json"):
        result.write_text("{")
    with pytest.raises(ConfigError, match=r"found none; sweep\.json: "):
        advised(tmp_path)


# What is said of the kept rehearsals, by ``scalewise score`` too, and what the docs show of it.
DOCS = ROOT / "docs/rehearsal.md"
KEPT = sorted((ROOT / "docs/results/rehearsal").iterdir())


@pytest.mark.parametrize(
    ("mark", "words"),
    [
        ("score", ["score", *map(str, KEPT)]),
        ("advice", ["advise", *(str(path) for path in KEPT if path.name == "gpt2_p2p_off.zip")]),
    ],
)
def test_the_docs_show_what_is_said_of_the_kept_sweeps(
    mark: str, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    begin, end = f"<!-- {mark}: begin -->\n```\n", f"```\n<!-- {mark}: end -->"
    assert main(words) == 0
    said = "".join(f"{line.rstrip()}\n" for line in capsys.readouterr().out.splitlines())
    text = DOCS.read_text()
    before, _, rest = text.partition(begin)
    made = f"{before}{begin}{said}{end}{rest.partition(end)[2]}"
    if "UPDATE_DOCS" in os.environ:
        DOCS.write_text(made)
    else:
        assert made == text, "UPDATE_DOCS=1 pytest tests/unit/report/test_advice.py"


def test_a_folder_of_sweeps_is_read_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    two = sorted((ROOT / "docs/results/rehearsal").glob("gpt2_[8f]*.zip"))
    assert main(["score", *map(str, two)]) == 0
    each = capsys.readouterr().out
    for archive in two:
        (tmp_path / archive.stem).symlink_to(kept(f"rehearsal/{archive.stem}"))
    assert (main(["score", str(tmp_path)]), capsys.readouterr().out) == (0, each)
    assert len([line for line in each.splitlines() if "──" in line]) == 2, "a table in one piece"


def test_the_readme_shows_an_answer_of_a_kept_sweep() -> None:
    found = analysis_of(kept("rehearsal/gpt2_x4_weak_nvlink"))
    (four,) = (one for one in found.rehearsals if one.record.ranks == 4)
    assert " ".join(str(four).split()) in " ".join((ROOT / "README.md").read_text().split())
