"""What a sweep over values says as a whole, and what pruning asked for and reached."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from recorded import Spec, repeats, write_sweep
from rich.console import Console

from scalewise import report
from scalewise.analysis.load import load_sweep
from scalewise.analysis.summary import Analysis, analyse
from scalewise.records import SweepFolder
from scalewise.report import doubts, swept

RESULTS = Path(__file__).parents[3] / "docs" / "results"
EXAMINED = {
    name: RESULTS / "h200x2_anatomy" / name / "doctor-ddp-r0-19e13833" / "doctor.json"
    for name in ("nvlink", "p2p_off")
}
STEADY = [1.0, 1.01, 0.99]
MAGNITUDE = {"name": "magnitude", "kind": "magnitude", "sparsity": 0.5, "end_step": 1000}


def analysed(path: Path, *specs: Spec) -> Analysis:
    return analyse(load_sweep(write_sweep(path, specs)))


def sized(factors: list[float], *sizes: int) -> list[Spec]:
    """One device with each of these batch sizes; all take the same time a step."""
    return [one for size in sizes for one in repeats(Spec(batch_size=size), factors)]


def printed(path: Path) -> str:
    file = StringIO()
    report.print_console(path, Console(file=file, width=10_000))
    return file.getvalue()


def test_the_fastest_row_is_named_where_its_interval_lies_above_all_others(tmp_path: Path) -> None:
    found = analysed(tmp_path, *sized(STEADY, 256, 32, 64))
    (line,) = swept.fastest(found)
    # 256 samples in steps of 10 ms.
    rate = re.fullmatch(r"fastest: large single x1 batch_size=256 with (\S+) ± \d+ samples/s", line)
    assert rate
    assert float(rate[1].replace(",", "")) == pytest.approx(25_600, rel=1e-3)
    assert line in printed(tmp_path)
    page = report.build(tmp_path).markdown.read_text()
    assert f"\n{line[:1].upper()}{line[1:]}.\n" in page.partition("## Scaling")[0]


@pytest.mark.parametrize(
    ("specs", "expected"),
    [
        # A third less or more from run to run: 128 may be as fast as 130, 32 cannot be.
        (
            [*sized([1.0, 1.1, 0.9], 128, 130), *sized(STEADY, 16)],
            "fastest: not decided between large single x1 batch_size=130 and "
            "large single x1 batch_size=128",
        ),
        (
            sized([1.0, 1.1, 0.9], 128, 130, 132, 134, 136),
            "fastest: not decided between large single x1 batch_size=136, large single x1 "
            "batch_size=134, large single x1 batch_size=132 and 2 more",
        ),
        (
            sized([1.0], 16, 64, 32),
            "fastest: not decided: large single x1 batch_size=64 has the highest samples/s, of one "
            "run, which does not tell how far others would lie from it: repeat it (repeats=5)",
        ),
        # One run of the slower one: nothing shows that the others lie above it.
        (
            [*sized(STEADY, 64, 128), *sized([1.0], 16)],
            "fastest: not decided between large single x1 batch_size=128 and "
            "large single x1 batch_size=16",
        ),
    ],
)
def test_the_fastest_row_is_left_open_where_intervals_meet(
    tmp_path: Path, specs: list[Spec], expected: str
) -> None:
    assert swept.fastest(analysed(tmp_path, *specs)) == [expected]


def test_two_rows_or_rows_that_differ_in_devices_alone_have_no_fastest(tmp_path: Path) -> None:
    assert swept.fastest(analysed(tmp_path / "two", *sized(STEADY, 32, 64))) == []
    devices = [Spec(strategy="ddp", devices=n) if n > 1 else Spec() for n in (1, 2, 4)]
    assert swept.fastest(analysed(tmp_path / "devices", *devices)) == []


def test_losses_after_unequal_numbers_of_samples_are_doubted(tmp_path: Path) -> None:
    doubt = "large on tabular: losses were reached at unequal samples (1,920 to 15,360): they do "
    found = doubts.warnings(analysed(tmp_path / "sizes", *sized(STEADY, 256, 32)))
    assert [line for line in found if "unequal samples" in line] == [f"{doubt}not rank the rows"]
    rates = [Spec(config={"optimizer": {"name": "adam", "lr": lr}}) for lr in (0.1, 0.2)]
    other = Spec(model="medium", batch_size=32)
    found = doubts.warnings(analysed(tmp_path / "rates", *rates, other))
    assert not [line for line in found if "unequal samples" in line]


def pruned(path: Path, share: float, *specs: Spec) -> Analysis:
    sweep = SweepFolder(write_sweep(path, specs))
    for result in sweep.path.glob("*/result.json"):
        config = (result.parent / "config.yaml").read_text()
        if "kind: magnitude" in config:
            text = result.read_text()
            assert '"pruned_share": null' in text
            result.write_text(text.replace('"pruned_share": null', f'"pruned_share": {share}'))
    return analyse(load_sweep(sweep.path))


@pytest.mark.parametrize(
    ("share", "steps", "expected"),
    [
        (0.15, 60, ["large single x1: pruned to 15 % of 50 % configured: pruning.end_step=1000 "
                    "lies beyond the run's 60 steps"]),
        (0.4, 1000, ["large single x1: pruned to 40 % of 50 % configured"]),
        (0.497, 1000, []),
    ],
)  # fmt: skip
def test_pruning_that_stays_from_its_target_is_doubted(
    tmp_path: Path, share: float, steps: int, expected: list[str]
) -> None:
    found = pruned(tmp_path, share, Spec(steps=steps, config={"pruning": MAGNITUDE}))
    assert [line for line in doubts.warnings(found) if "pruned to" in line] == expected
    text = printed(tmp_path)
    assert "pruning=magnitude (sparsity 0.5)" in text.partition("configuration")[0]
    assert "pruned" in text.partition("doubt:")[0].partition("step")[2]


def test_no_pruning_is_not_spoken_of_and_one_among_others_names_its_row(tmp_path: Path) -> None:
    none = {"pruning": {"name": "none", "kind": "none", "sparsity": 0.5, "end_step": 1000}}
    write_sweep(tmp_path / "none", [Spec(config=none)])
    assert "prun" not in printed(tmp_path / "none")
    both = pruned(tmp_path / "both", 0.5, Spec(config=none), Spec(config={"pruning": MAGNITUDE}))
    text = printed(both.sweep.path)
    assert "large single x1 pruning=magnitude" in text
    assert "(sparsity" not in text


def test_an_examination_shows_what_it_measured(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, [replace(Spec(), config={"workload": "doctor"})])
    shutil.copy(EXAMINED["p2p_off"], path / "doctor.json")
    measured = json.loads((path / "doctor.json").read_text())
    rates = [
        rate
        for rate in measured["ranks"][0]["collectives"]
        if (rate["backend"], rate["collective"]) == ("nccl", "all_reduce")
    ]
    sizes = sorted(rate["bytes"] for rate in rates)
    assert len(sizes) > 3
    screen, page = printed(path), report.build(path).markdown.read_text()
    for text, mark in ((screen, " "), (page, "| ")):
        lines = [line for line in text.splitlines() if line.startswith(f"{mark}nccl all-reduce, ")]
        assert len(lines) == 3
        largest = max(rates, key=lambda rate: rate["bytes"])
        assert f"{largest['bytes'] // 2**30} GiB" in lines[-1]
        assert f"{largest['bus_gb_s']:.3g}" in lines[-1]
        assert "bf16 GEMM" in text
    assert "). " in screen
    assert ". (" not in screen
    timed = write_sweep(tmp_path / "timed", [Spec()])
    shutil.copy(path / "doctor.json", timed / "doctor.json")
    assert "nccl all-reduce, " not in printed(timed)
    assert "| nccl all-reduce, " in report.build(timed).markdown.read_text()
