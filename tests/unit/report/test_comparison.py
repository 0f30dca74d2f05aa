"""``scalewise compare`` and its exit status."""

import csv
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.recorded import DDP, STEADY, STEADY_3, Spec, analysed, repeats, step_ms, write_sweep
from scalewise.analysis import workloads
from scalewise.cli import main


def sweep(path: Path, factor: float = 1.0, factors: Sequence[float] = STEADY, **config: Any) -> str:
    """One and two devices, whose times are ``factors``; the code is called as the folder."""
    sides = (replace(side, commit=path.name * 12, config=config) for side in (Spec(), DDP))
    own = [one * factor for one in factors]
    return str(write_sweep(path, [run for side in sides for run in repeats(side, own)]))


@pytest.fixture
def before(tmp_path: Path) -> str:
    return sweep(tmp_path / "a")


def test_a_slowdown_is_shown_and_small_ones_are_not(
    tmp_path: Path, before: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # else lines are broken
    assert main(["compare", before, sweep(tmp_path / "b", 1.02), "--factor", "code"]) == 0
    found = re.search(
        r"large single x1: slower: (\S+) \(97\.5 % interval .*\) from 5 and 5 runs\n",
        capsys.readouterr().out,
    )
    assert found and float(found[1]) == pytest.approx(1 / 1.02, abs=0.006)
    wild = {"c": [1.0, 1.06, 1.03], "d": [1.6, 2.5, 3.2]}
    folders = [sweep(tmp_path / name, factors=own) for name, own in wild.items()]
    assert main(["compare", *folders, "--factor", "code"]) == 0
    said = capsys.readouterr().out
    found = re.search(
        r"no difference shown: 0\.44 \(97\.5 % interval (.*)-(.*)\) from 3 and 3 runs", said
    )
    assert found, said
    low, high = map(float, found.groups())
    assert low < 1 < high


def test_a_replaced_run_is_told_beside_the_figures_it_is_in(
    tmp_path: Path, before: str, capsys: pytest.CaptureFixture[str]
) -> None:
    after = sweep(tmp_path / "b")
    cell = next(Path(after).glob("*-single-r1"))
    (cell / "earlier" / "1").mkdir(parents=True)
    (cell / "earlier" / "1" / "result.json").write_text("{}")
    assert main(["compare", before, after, "--factor", "code"]) == 0
    said = capsys.readouterr().out
    assert "\nB: 1 run whose results were set aside (sweep.rerun" in said
    assert "\nA: " not in said


HOSTILE = "=1+1 <img src=x> |b| ](javascript:x) \x1b[31m"


def test_what_out_writes_has_the_same_numbers_and_no_name_is_more_than_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, named = tmp_path / "out", {"name": HOSTILE}
    slower = {"a": 1.0, "b": 2.0}
    folders = [sweep(tmp_path / one, by, STEADY_3, model=named) for one, by in slower.items()]
    words = ["compare", *folders, "--factor", "code"]
    assert main([*words, "--out", str(out)]) == 0
    plain = json.loads((out / "comparison.json").read_text())
    (work,), (ratio,) = plain["works"], plain["global_samples_per_s_ratios"]
    speed = work["metrics"]["global_samples_per_s"]
    assert work["rows"][speed["winner"]] == "A ddp x2"
    assert {"step_time_p50_ms", "peak_memory_per_device_mib"} < set(work["metrics"])
    assert [match["ratio"]["n"] for match in ratio["matches"]] == [[3, 3]] * 2
    assert ratio["matches"][0]["ratio"]["value"] == pytest.approx(0.5, rel=0.01)
    rows = list(csv.DictReader((out / "comparison.csv").read_text().splitlines()))
    assert [row["side"] for row in rows] == list("AABB")
    means = [figure["value"] for figure in speed["figures"].values()]
    assert [float(row["global_samples_per_s"]) for row in rows] == pytest.approx(means)
    assert not any(value.startswith("=") for row in rows for value in row.values())
    markdown = (out / "comparison.md").read_text()
    assert "What to take" in markdown.splitlines()[2]
    assert not re.search(r"(?<!\\)<img|(?<!\\)\]\(java|\x1b", markdown)
    assert main([*words[:-1], "model", "--out", str(out)]) == 0
    (ratio,) = json.loads((out / "comparison.json").read_text())["global_samples_per_s_ratios"]
    refused = [(one["label"][-2:], one["differing"][0]["field"]) for one in ratio["unmatched"]]
    assert refused == [("x1", "code.commit"), ("x2", "code.commit")]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").touch()
    assert main([*words, "--out", str(tmp_path / "mine")]) == 2
    assert "which holds other files" in capsys.readouterr().err


def test_an_open_answer_ends_with_the_command_that_adds_the_runs_it_lacks(
    tmp_path: Path, before: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, runs in (("two", 2), ("four", 4)):
        sweep(tmp_path / name, factors=STEADY[:runs])
    assert main(["compare", "a", "two", "four"]) == 0
    said = capsys.readouterr().out
    assert "; a verdict needs 1 more of B" in " ".join(said.split())
    assert "for time A ddp x2 or C ddp x2, open; for cost" in " ".join(said.split())
    # Four runs are enough for a verdict: two of B are what it waits for first.
    assert (
        said.splitlines()[-1]
        == "Next, for a winner, not a verdict, in B: scalewise resume two sweep.extend=1"
    )
    for name, level, last in (
        (
            "b",
            0.9,
            "Next, for a winner, not a verdict, in B: scalewise resume b sweep.extend=7",
        ),  # as a verdict's are counted
        ("c", 1.0, "More runs hardly decide what is open."),
    ):
        sweep(tmp_path / name, level, factors=[0.87, 1.0, 1.15])
        assert main(["compare", "a", name]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == last


def test_without_a_factor_rows_winners_and_the_factor_that_differs_are_printed(
    tmp_path: Path, before: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", before, sweep(tmp_path / "b", 2.0)]) == 0
    said = capsys.readouterr().out
    assert f"samples/s: A ddp x2 wins by {step_ms(Spec()) / step_ms(DDP):.2f}x" in said
    assert "what differs: code" in said and "--out" not in said
    assert "peak memory: no winner, A single x1 and A ddp x2 are equal." in said
    assert ", 128 samples a step: for time take A ddp x2; for cost take " in " ".join(said.split())
    assert "large ddp x2: slower: 0.50" in said
    assert main(["compare", before, sweep(tmp_path / "d", model={"name": "m"}, k=1, m=2)]) == 0
    assert "\ncomparison.json of --out FOLDER has every field" in capsys.readouterr().out
    auto = [replace(s, config={"repeats": "auto"}) for s in (Spec(), DDP)]
    each = [repeats(s, STEADY[:3][::way]) for s, way in zip(auto, (1, -1), strict=True)]
    found = analysed(tmp_path / "c", *each[0], *each[1])
    (work,), (pair,) = workloads([found]), found.pairs
    looked, winner = pair.speedup.interval, work.winners[0].advantage
    assert winner and looked and winner.interval == looked, "the winner's is the verdict's"
