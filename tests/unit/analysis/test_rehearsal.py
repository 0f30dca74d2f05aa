"""What is said of a rehearsal: beside its single device, and never as a verdict of runs."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.recorded import DDP, SINGLE_MS, STEADY_3, Spec, edit_ranks, repeats, write_sweep
from scalewise.analysis import Analysis, analyse, load_sweep
from scalewise.analysis.rehearsal import STEP_ERROR
from scalewise.report import build

SINGLE = Spec()
LINK = {"name": "pcie", "ranks": 2, "points": [[1, 0.1], [2, 0.1]], "source": "a doctor"}
FASTER = {**SINGLE_MS, "forward": 1.2, "backward": 2.8}


def rehearsal(ranks: int = 4, **changes: object) -> Spec:
    """One rank of ``ranks``, in twice the time of its share of the batch."""
    strategy = {"name": "ddp_rehearsed", "kind": "rehearsal", "ranks": ranks, "link": LINK}
    plain = {"strategy": strategy, "batch_size": 128}
    spec = replace(SINGLE, batch_size=128 // ranks, phases_ms=FASTER, config=plain)
    return replace(spec, strategy="ddp_rehearsed", **changes)  # type: ignore[arg-type]


def played(path: Path, *specs: Spec, ranks: int = 4) -> Analysis:
    write_sweep(path, specs)
    record = {"ranks": ranks, "link": "pcie", "source": "a doctor"}
    edit_ranks(path, lambda one: one.update(rehearsed=record), "*ddp_rehearsed*")
    return analyse(load_sweep(path))


def three(spec: Spec) -> list[Spec]:
    return repeats(spec, STEADY_3)


def test_it_is_held_against_one_device_and_called_likely(tmp_path: Path) -> None:
    found = played(tmp_path, *three(SINGLE), *three(rehearsal()))
    (one,) = found.rehearsals
    step_ms = sum(FASTER.values()) / sum(SINGLE_MS.values())
    assert one.speedup is not None and one.speedup.interval is not None
    assert one.speedup.value == pytest.approx(1 / step_ms, rel=0.01)
    assert one.word == "cannot tell"  # 2x is wanted of four, and 2.0x is what it is
    assert (found.pairs, found.refused) == ((), ())
    assert [c.label for c in found.measured] == ["large single x1"]
    assert one.label == "large ddp x4, rehearsed over pcie"


@pytest.mark.parametrize(("ranks", "word"), [(2, "likely pays"), (8, "likely does not pay")])
def test_the_whole_interval_decides(tmp_path: Path, ranks: int, word: str) -> None:
    found = played(tmp_path, *three(SINGLE), *three(rehearsal(ranks)), ranks=ranks)
    assert [one.word for one in found.rehearsals] == [word]
    assert found.rehearsals[0].config not in found.configurations


def test_the_interval_is_as_wide_as_the_score_however_steady_the_runs(tmp_path: Path) -> None:
    found = played(tmp_path, *repeats(SINGLE, [1.0] * 3), *repeats(rehearsal(), [1.0] * 3))
    speedup = found.rehearsals[0].speedup
    assert speedup is not None and speedup.interval is not None
    assert speedup.interval.high / speedup.value == pytest.approx(1 + STEP_ERROR)


@pytest.mark.parametrize(
    ("specs", "reason"),
    [
        (three(rehearsal()), "no single-device cell"),
        ([*three(replace(SINGLE, batch_size=64)), *three(rehearsal())], "no single-device cell"),
        ([*three(SINGLE), *three(rehearsal())[:2]], "2 of 3 runs"),
        ([*three(replace(SINGLE, kind="cpu")), *three(rehearsal(kind="cpu"))], "on CPUs"),
    ],
)
def test_what_cannot_be_told_says_why(tmp_path: Path, specs: list[Spec], reason: str) -> None:
    (one,) = played(tmp_path, *specs).rehearsals
    assert one.word == "cannot tell"
    assert reason in one.reason


def test_beside_the_same_on_devices_that_were_there_it_is_scored(tmp_path: Path) -> None:
    real = replace(DDP, devices=4, config={"strategy": {"name": "ddp", "kind": "ddp"}})
    found = played(tmp_path, *three(SINGLE), *three(rehearsal()), *three(real))
    (one,) = found.rehearsals
    assert one.measured is not None and one.step_error is not None
    error = sum(FASTER.values()) / sum(DDP.phases_ms.values())
    assert one.step_error.value == pytest.approx(error, rel=0.01)
    assert f"({error - 1:+.1%})" in one.score


def test_the_report_marks_it_and_keeps_it_out_of_the_figures(tmp_path: Path) -> None:
    played(tmp_path, *three(SINGLE), *three(rehearsal(2)), ranks=2)
    files = build(tmp_path, tmp_path / "out")
    page, details = files.markdown.read_text(), files.details.read_text()
    assert "large ddp x2, rehearsed over pcie: 2.00x (90 % interval 1." in page
    assert "Rehearsed, not measured" in details
    assert "Nothing ran on several devices; more were rehearsed." in page
    (plain,) = json.loads(files.json.read_text())["rehearsals"]
    assert (plain["ranks"], plain["verdict"]) == (2, "likely pays")
    scaling = details[details.index("## Scaling") :].split("\n## ")[0]
    assert "rehearsed" not in scaling
