"""What makes a verdict *invalid*: no figure of it is printed, priced or ranked."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from fakes.kept_sweep import kept_sweeps
from fakes.recorded import DDP, Spec, edit_ranks, repeats, write_sweep
from fakes.sections import answers, lines_of, values
from fakes.step_files import steady_rows, write_rows
from scalewise import records
from scalewise.analysis import Analysis, Row, analyse, choose_strategy, compare, load_sweep
from scalewise.analysis.validity import check_published, contradiction
from scalewise.records import WARMUP, ImportedResult, StepSeries, SweepFolder, read_steps, to_plain
from scalewise.records import build as build_record

Rank = dict[str, Any]


def analysed(path: Path, change: Callable[[Rank], None], multi: Spec = DDP) -> Analysis:
    """Three runs a side; every rank of those on two devices is changed."""
    edit_ranks(write_sweep(path, [*repeats(Spec()), *repeats(multi)]), change, "*-ddp-*")
    return analyse(load_sweep(path))


def nothing(rank: Rank) -> None:
    """Sound runs."""


def fed(*shape: int, asked: int | None = 16) -> Callable[[Rank], None]:
    """Batches whose first tensor has this shape, from a loader that says ``asked``."""
    return lambda rank: rank.update(batch_shape=list(shape), loader_batch_size=asked)


def drift(share: float) -> Callable[[Rank], None]:
    """Replicas whose parameters lie apart by a share of their norm, which is 5."""
    return lambda rank: rank.update(replica_fingerprint=[5.0, 1.0 + 5 * share * rank["rank"]])


@pytest.mark.parametrize(
    ("change", "multi", "code"),
    [
        (lambda rank: rank["device"].update(uuid="GPU-1"), DDP, "shared_device"),
        (fed(24, 16, 8), DDP, "sample_count"),
        (lambda rank: rank.update(parameters_changed=False), DDP, "frozen"),
        (drift(1.1e-5), DDP, "replicas_differ"),
        (nothing, replace(DDP, sharded=False), "shards_overlap"),
        (nothing, replace(DDP, final_loss=float("nan")), "loss_not_finite"),
    ],
)
def test_it_outranks_every_other_verdict(
    tmp_path: Path, change: Callable[[Rank], None], multi: Spec, code: str
) -> None:
    found = analysed(tmp_path, change, multi)
    single, ddp = found.measured
    assert [one.code for one in found.invalid[ddp.config_id]] == [code]
    assert single.config_id not in found.invalid
    assert "invalid" in values(found, "scaling", "scaling", "verdict")
    assert Row(found, ddp).pair is None
    assert found.costs[ddp.config_id].usd_per_million_samples is None
    ((label, (verdict, reason)),) = answers(found).items()
    assert (label, verdict) == (ddp.label, "invalid")
    assert "USD" not in reason


@pytest.mark.parametrize(
    "change",
    [
        fed(16, 24, 8),
        drift(0.9e-5),
        fed(24, 16, 8, asked=None),
        fed(15, 24, 8),  # a loader that leaves out what it cannot read
        fed(32, 3, 8),  # two views of each sample
    ],
)
def test_other_counts_are_valid(tmp_path: Path, change: Callable[[Rank], None]) -> None:
    assert not analysed(tmp_path, change).invalid


@pytest.mark.parametrize(("loss", "says"), [(0.30, True), (0.2501, False)])
def test_faster_but_learning_less_is_a_verdict(tmp_path: Path, loss: float, says: bool) -> None:
    (pair,) = analysed(tmp_path, nothing, replace(DDP, final_loss=loss)).pairs
    assert pair.loss.learns_less is says
    assert ("learns_less" in [one.code for one in pair.remarks]) is says


# Steps without a gradient are fast ones: a run with such steps is doubted, or invalid.
AUTO = {"repeats": "auto", "max_repeats": 8, "precision_percent": 2}
SIDES = [run for spec in (Spec(config=AUTO), replace(DDP, config=AUTO))
         for run in repeats(spec)]  # fmt: skip


def trained_without(path: Path, *specs: Spec, without: int | None) -> Analysis:
    """The single-device runs left out a gradient in so many steps, the others in none."""
    edit_ranks(write_sweep(path, specs), lambda rank: rank.update(steps_without_loss=0), "*-ddp-*")
    edit_ranks(path, lambda rank: rank.update(steps_without_loss=without), "*-single-*")
    return analyse(load_sweep(path))


@pytest.mark.parametrize(("without", "counted"), [(15, "15 of 60 steps"), (0, ""), (None, "")])
def test_an_untrained_run_is_doubted(tmp_path: Path, without: int | None, counted: str) -> None:
    found = trained_without(tmp_path, Spec(), without=without)
    said = [line for line in lines_of(found, "remarks") if "trained nothing" in line]
    assert [counted in line for line in said] == [True] * bool(counted)


def test_its_comparisons_are_invalid_and_nothing_is_repeated_or_chosen(tmp_path: Path) -> None:
    """Three runs on one device that trained nothing, and three on two that did."""
    untrained = trained_without(tmp_path, *SIDES, without=60)
    (pair,) = untrained.pairs
    assert (pair.verdict, pair.invalid[0].code) == ("invalid", "invalid_baseline")
    single, multi = untrained.measured
    codes = {key: why[0].code for key, why in untrained.invalid.items()}
    assert codes == {single.config_id: "untrained", multi.config_id: "invalid_baseline"}
    costs = [untrained.costs[c.config_id] for c in (single, multi)]
    assert [cost.usd_per_million_samples for cost in costs] == [None, None]
    (both,) = untrained.repeats
    assert (both.wanted, both.because) == (None, "failures")
    decision = choose_strategy({str(c.name("strategy")): c for c in untrained.measured}, 60, 128)
    problems = {one.name: one.problem for one in decision.candidates}
    assert decision.chosen == "ddp"
    assert not problems["ddp"]
    assert (problems["single"] or "").startswith("60 of 60 steps trained nothing")


def test_it_is_not_the_fastest(tmp_path: Path) -> None:
    """It has three times the samples/s of the fastest that trained, and one device, as they do."""
    others = [one for size in (256, 512) for one in repeats(Spec(batch_size=size))]
    write_sweep(tmp_path, [*repeats(Spec(batch_size=64), [0.1, 0.101, 0.099]), *others])
    edit_ranks(tmp_path, lambda rank: rank.update(steps_without_loss=60), "00[012]-*")
    (named,) = [line for line in lines_of(tmp_path, "answer") if line.startswith("Fastest: ")]
    assert "batch_size=512" in named and "batch_size=64" not in named


@pytest.mark.parametrize(("a", "b", "side"), [(0, 60, "B"), (60, 0, "A")])
def test_it_is_as_fast_as_before(tmp_path: Path, a: int, b: int, side: str) -> None:
    before = trained_without(tmp_path / "a", *SIDES[:3], without=a).sweep
    found = compare(before, trained_without(tmp_path / "b", *SIDES[:3], without=b).sweep, "code")
    assert found.matches == ()
    assert found.unmatched[0].reason.startswith(f"in {side}, 60 of 60 steps trained nothing")


# Step times that cannot all be true make a verdict invalid, also in files without checksums.
Rows = npt.NDArray[np.void]
ROOT = Path(__file__).resolve().parents[3]


def found(rows: Rows) -> str | None:
    return contradiction([StepSeries(0, rows, 0)])


def scaled(times: float, starts: float) -> Callable[[Rows], None]:
    def change(rows: Rows) -> None:
        for name in rows.dtype.names or ():
            if name.endswith("_ms"):
                rows[name] *= times
        begin = rows["start_ns"][0]
        rows["start_ns"] = begin + ((rows["start_ns"] - begin) * starts).astype(np.int64)

    return change


def added(name: str, more: int, first: int = 25, last: int | None = None) -> Callable[[Rows], None]:
    """So much more in the column of these steps."""

    def change(rows: Rows) -> None:
        rows[name][first:last] += more

    return change


@pytest.mark.parametrize(
    ("change", "contradicts"),
    [
        (scaled(4, 1), True), (added("host_forward_ms", 2, last=26), True),
        (added("start_ns", -(10**6)), True),
        (added("start_ns", 10**9), False),  # a pause
        (scaled(1, 2), False), (scaled(1, 2.01), True),  # half of the time, and more
    ],
)  # fmt: skip
def test_steps_are_apart_phases_add_up(change: Callable[[Rows], None], contradicts: bool) -> None:
    rows = steady_rows(50)
    assert found(rows) is found(rows[:1]) is found(rows[:0]) is None
    change(rows)
    assert (found(rows) is not None) == contradicts


@pytest.mark.parametrize(
    ("share", "steps", "contradicts"),
    [(1.14, 1000, False), (1.16, 1000, True), (0.84, 1000, True), (1.4, 100, False)],
)
def test_the_device_is_compared_with_the_host_over_the_window(
    share: float, steps: int, contradicts: bool
) -> None:
    rows = steady_rows(steps)
    for phase in records.PHASES:
        rows[f"host_{phase}_ms"] = rows[f"device_{phase}_ms"] = np.nan
    rows["device_step_ms"] *= share
    rows["device_step_ms"][::2] += 5
    rows["device_step_ms"][1::2] -= 5
    rows["flags"][0] = WARMUP
    rows["device_step_ms"][0] = 9e5
    assert (found(rows) is not None) == contradicts


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (scaled(0.01, 1), "most of the time is in no step"),
        (scaled(100, 100), "steps of 1090 s in a run of"),
        (added("samples", 1000, first=0), "samples a step, of a batch of 128"),
    ],
)
def test_rows_that_were_altered_with_their_checksums_are_not_believed(
    tmp_path: Path, change: Callable[[Rows], None], said: str
) -> None:
    write_sweep(tmp_path, [replace(Spec(), steps=1000)])
    assert not analyse(load_sweep(tmp_path)).invalid
    (path,) = tmp_path.glob("*/steps/rank0.bin")
    rows = read_steps(path, 0).rows.copy()
    change(rows)
    write_rows(path, rows)
    ((remark,),) = analyse(load_sweep(tmp_path)).invalid.values()
    assert remark.code == "records_contradict" and said in remark.text
    edit_ranks(tmp_path, lambda rank: rank.update(usual_step_samples=1, largest_step_samples=2000))
    assert bool(analyse(load_sweep(tmp_path)).invalid) == ("of a batch" not in said)


def test_a_device_does_no_more_than_its_data_sheet_says(tmp_path: Path) -> None:
    write_sweep(tmp_path, [Spec()])
    ((_, cell),) = SweepFolder(tmp_path).cells()
    # 128 samples of 12 MFLOP in 10 ms.
    for peak, invalid in ((0.2, False), (0.1, True)):
        known = replace(cell.load_provenance(), peak_tflops={"fp32": peak / 2, "bf16": peak})
        cell.save_provenance(known)
        found = analyse(load_sweep(tmp_path)).invalid.values()
        assert ["TFLOP/s a device" in one.text for (one,) in found] == [True] * invalid


def test_no_kept_step_file_contradicts_itself() -> None:
    folders = (*kept_sweeps(), ROOT / "tests" / "golden")
    paths = [path for folder in folders for path in sorted(folder.rglob("steps/rank*.bin"))]
    assert len(paths) > 100
    assert contradiction([read_steps(path, 0) for path in paths]) is None


# Published results that contradict themselves.
RIGHT = ImportedResult(2, 128, 9.4, 128 / 9.4e-3)


def published(devices: int, factor: float) -> ImportedResult:
    """A batch of 128 at 9.4 ms a step, and ``factor`` times its throughput."""
    return replace(RIGHT, devices=devices, samples_per_s=factor * RIGHT.samples_per_s)


@pytest.mark.parametrize(
    ("result", "codes"),
    [
        (published(4, 1.0), []),
        (published(2, 1 / 2), ["counted_batch"]),
        (published(8, 1 / 8), ["counted_batch"]),
        (published(2, 4.0), ["counted_batch"]),
        (published(4, 1.06), ["counted_batch"]),
        (published(4, 1.04), []),
        (published(1, 1.0), []),
        # Published figures are rounded: as much as 5 % above the step is none.
        (replace(RIGHT, communication_ms=1.04 * RIGHT.step_time_ms), []),
        # More communication than step: a timer that did not wait.
        (replace(RIGHT, communication_ms=1.06 * RIGHT.step_time_ms), ["unsynchronised_timing"]),
    ],
)
def test_figures_that_contradict_each_other_are_a_fault(
    tmp_path: Path, result: ImportedResult, codes: list[str]
) -> None:
    found = [*check_published(result)]
    assert [one.code for one in found] == codes
    write_sweep(tmp_path, [replace(DDP, kind="cpu")])
    ((_, folder),) = SweepFolder(tmp_path).cells()
    # As a person types it: without a version.
    (folder.path / result.FILE).write_text(json.dumps(to_plain(result)))
    said = [row for row in lines_of(tmp_path, "remarks") if any(one.text in row for one in found)]
    assert len(said) == len(codes)


def test_a_line_without_a_step_time_is_no_line() -> None:
    line = {"devices": 2, "global_batch_size": 128, "step_time_ms": 0.0, "samples_per_s": 100.0}
    with pytest.raises(records.DataError) as caught:
        build_record(ImportedResult, line)
    assert caught.value.key == "step_time_ms"
