"""What would make a sceptical reader of a report stumble: figures that contradict or mislead."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from recorded import DDP, DDP_MS, Spec, repeats, write_sweep
from scalewise.report.plots_scaling import ratio_points

from fakes.kept_sweep import with_known_code
from scalewise import report
from scalewise.analysis.apart import Window
from scalewise.analysis.communication import (
    SerialFraction,
    measure_communication,
    measured_serial_fraction,
)
from scalewise.analysis.load import load_sweep
from scalewise.analysis.mfu import Mfu, MfuResult
from scalewise.analysis.scaling import Pair
from scalewise.analysis.seed_breakdown import seed_rows
from scalewise.analysis.statistics import Interval, RatioEstimate
from scalewise.analysis.summary import Analysis, analyse
from scalewise.cli import main
from scalewise.records import SweepFolder
from scalewise.report import (
    allocator,
    balance_runs,
    communication,
    doubts,
    export,
    faults,
    findings,
    provenance,
    tables,
)

RESULTS = Path(__file__).parents[3] / "docs" / "results"
RECORDING = Path(__file__).parents[2] / "data" / "h200x2_gpt2"
FACTORS = [1.0, 1.03, 0.96]


def analysed(path: Path, *specs: Spec) -> Analysis:
    return analyse(load_sweep(write_sweep(path, list(specs))))


def page(path: Path, *specs: Spec) -> str:
    return report.build(write_sweep(path, list(specs))).markdown.read_text()


def column(table: tables.Table, header: str) -> list[str]:
    return [row[table.headers.index(header)] for row in table.rows]


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    (found,) = analysed(tmp_path, Spec(), DDP).pairs
    return found


def with_speedup(pair: Pair, value: float, *interval: float) -> Pair:
    bounds = Interval(*interval) if interval else None
    return replace(pair, speedup=RatioEstimate(value, (3, 3), bounds, None))


def test_a_serial_fraction_beyond_0_and_1_is_not_defined(pair: Pair) -> None:
    slow = measured_serial_fraction(with_speedup(pair, 0.58, 0.55, 0.63))
    assert slow == "not defined: slower than one device (speedup 0.58)"
    fast = measured_serial_fraction(with_speedup(pair, 2.1, 2.0, 2.2))
    assert fast == "not defined: more than linear (speedup 2.10 on 2 devices)"
    wide = measured_serial_fraction(with_speedup(pair, 1.6, 0.8, 2.4))
    assert wide == SerialFraction(pytest.approx(0.25), 0.0, 1.0)


def test_a_report_of_a_slowdown_gives_the_reason_and_no_fraction(tmp_path: Path) -> None:
    slow = {**DDP_MS, "exposed_comm": 9.0}
    text = page(
        tmp_path, *repeats(Spec(), FACTORS), *repeats(replace(DDP, phases_ms=slow), FACTORS)
    )
    assert "no serial fraction: not defined: slower than one device" in text
    assert "Amdahl's serial fraction" not in text


def test_every_step_time_is_that_of_the_table_or_names_its_repeat(tmp_path: Path) -> None:
    slow = replace(DDP, phases_ms={**DDP_MS, "exposed_comm": 4.0})
    found = analysed(tmp_path, *repeats(Spec(), FACTORS), *repeats(slow, [1.0, 1.5, 0.8]))
    (pair,) = found.pairs
    step = pair.multi.estimate("step_time_ms")
    assert step is not None
    assert f" of {step.value:.3g} ms a step" in pair.judgement.reason
    limits = findings.limits(found)
    assert limits
    for line in limits:
        for ms, repeat in re.findall(r" of ([\d.]+) ms a step in repeat (\d)", line):
            run = pair.multi.runs[int(repeat)]
            assert run.throughput is not None
            assert float(ms) == pytest.approx(run.throughput.step_time_ms.mean, rel=0.005)
        assert re.search(r"ms a step in repeat \d\)", line)


def test_the_only_run_needs_no_name(tmp_path: Path) -> None:
    slow = replace(DDP, phases_ms={**DDP_MS, "exposed_comm": 4.0})
    (line, *_) = findings.limits(analysed(tmp_path, Spec(), slow))
    assert "ms a step):" in line


def test_a_balance_has_one_grade_wherever_it_stands(tmp_path: Path) -> None:
    """The mean is good, the worst of its runs fair."""
    specs = [replace(DDP, repeat=i, run_factor=f, slow_ranks_ms={1: ms})
             for i, (f, ms) in enumerate([(1.0, 0.4), (1.0, 0.9), (1.01, 1.2)])]  # fmt: skip
    found = analysed(tmp_path, *specs)
    assert column(tables.balance_table(found), "grade") == ["good"]
    (line,) = balance_runs.advice_lines(found)
    assert line.startswith("large ddp x2 (good): nothing to do")
    text = report.build(tmp_path).markdown.read_text()
    assert "% (good), mean over runs" in text
    assert not re.search(r"\b(Excellent|Good|Fair|Poor)\b", text)
    assert "excellent below 5 %, good below 10 %, fair below 20 %, else poor" in text


def test_a_cpu_host_is_told_nothing_of_gpus(tmp_path: Path) -> None:
    slow = replace(DDP, kind="cpu", device_name="a processor", slow_ranks_ms={1: 5.0})
    specs = [*repeats(replace(Spec(), kind="cpu", device_name="a processor"), FACTORS),
             *repeats(slow, FACTORS)]  # fmt: skip
    text, _, provenance = page(tmp_path, *specs).partition("## Provenance")
    assert provenance
    assert "check what else its cores run" in text
    assert "Nor does CPU time" in text
    assert "| mean RSS per rank (MiB) |" in text
    words = re.findall(r"\bGPUs?\b|NCCL|NVML|CUDA|throttl\w*|reads 100 %", text)
    assert words == []


def test_gpus_are_still_spoken_of_on_gpus(tmp_path: Path) -> None:
    slow = replace(DDP, slow_ranks_ms={1: 5.0})
    text = page(tmp_path, *repeats(Spec(), FACTORS), *repeats(slow, FACTORS))
    assert "check its device's clocks and throttling" in text
    assert "a rank that waits in a collective reads 100 %" in text


def test_energy_has_one_unit_in_both_tables(tmp_path: Path) -> None:
    found = analysed(tmp_path, Spec())
    (config,) = found.measured
    joules = config.estimate("joules_per_million_samples")
    assert joules is not None
    (shown,) = column(tables.resource_table(found), "energy (J per 1,000 samples)")
    assert float(shown.replace(",", "")) == pytest.approx(joules.value / 1000, rel=0.01)


def test_a_figure_that_only_some_runs_have_says_so(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, repeats(Spec(), FACTORS))
    next(path.glob("*-r1/gpu/*")).unlink()
    (line,) = [w for w in doubts.warnings(analyse(load_sweep(path))) if "is missing" in w]
    assert line.startswith("large single x1: usage is missing in 1 of 3 runs: ")


def test_peak_memory_is_the_same_in_both_tables(tmp_path: Path) -> None:
    path = shutil.copytree(RESULTS / "h200x2_gpt2", tmp_path / "sweep")
    found = analyse(load_sweep(path))
    first = column(tables.resource_table(found), "peak allocated per GPU (MiB)")
    assert column(allocator.allocator_table(found), "peak allocated (MiB)") == first
    assert len(first) == 2


def test_what_is_emulated_is_said_before_the_first_figure(tmp_path: Path) -> None:
    marks = ("NCCL_P2P_DISABLE=1",)
    text = page(tmp_path, Spec(emulated=marks), replace(DDP, emulated=marks))
    before, _, _ = text.partition("## Answer")
    assert "**EMULATED: NCCL_P2P_DISABLE=1; these figures do not describe" in before


def test_cores_that_contradict_the_ranks_are_not_given(tmp_path: Path) -> None:
    """Older records counted the cores of the host in a rank that was bound to its share."""
    kept = RESULTS / "cpu2_matrix"
    found = analyse(load_sweep(kept))
    (bound,) = {
        len(d.cores) for c in found.sweep.cells if c.provenance for d in c.provenance.devices
    }
    assert bound == 1
    text = report.build(kept, tmp_path / "out").markdown.read_text()
    assert "- cores bound per rank: 1" in text
    assert "usable cores of the host" not in text


def test_only_the_columns_of_the_table_are_explained(tmp_path: Path) -> None:
    found = analysed(tmp_path, Spec(), DDP)
    table = communication.communication_table(found)
    said = communication.how_to_read(table)
    assert "*Exposed*" in said
    for absent in ("*Total*", "*Expected*", "Bus bandwidth"):
        assert absent not in said


@pytest.mark.parametrize(("overlapped_ms", "doubted"), [(11.6, True), (17.0, False)])
def test_a_window_whose_ranks_waited_gives_no_figure(
    tmp_path: Path, overlapped_ms: float, doubted: bool
) -> None:
    """The figures of two H200s: 0.64 ms exposed in the timed steps."""
    window = Window(
        cell="c", timeline="device", steps=5, ranks=2, span_ms=50.0, computation_ms=44.0,
        total_ms=17.7, overlapped_ms=overlapped_ms, least_total_ms=10.7, on_ms=45.0, off_ms=43.3,
    )  # fmt: skip
    found = analysed(tmp_path, Spec(), DDP)
    (multi,) = [c for c in found.measured if c.devices == 2]
    cost = measure_communication(multi, window, None)
    assert cost is not None and cost.window is not None and cost.exposed is not None
    assert cost.window.cost_ms == pytest.approx(1.7), "measured with the profiler stopped"
    of_window = (cost.window.total_ms, cost.window.overlapped_ms, cost.window.least_total_ms)
    all_reduce = seed_rows(cost)[1].ms
    if doubted:
        assert of_window == (None, None, None)
        assert cost.missing["total and overlapped"]
        assert (cost.against, cost.achieved_bus_gb_s) == ("exposed only", None)
        assert all_reduce == cost.exposed.transfer_ms
    else:
        assert of_window == (17.7, 17.0, 10.7)
        assert "total and overlapped" not in cost.missing
        assert (cost.against, all_reduce) == ("profiler window", 17.7)


def test_collectives_of_a_doubted_window_are_in_no_file() -> None:
    found = analyse(load_sweep(RESULTS / "h200x2_anatomy" / "nvlink"))
    plain = json.loads(export.as_json(found))
    ranks = [r for c in plain["configurations"] for p in c["profiles"] for r in p["ranks"]]
    assert ranks
    for rank in ranks:
        assert (rank["communication_ms"], rank["overlapped_ms"]) == (None, None)
        assert rank["missing"]["communication_ms"]
        assert rank["operations"] and not any(o["communication"] for o in rank["operations"])


def test_what_holds_of_ddp_is_said_of_no_other_strategy(tmp_path: Path) -> None:
    """Other strategies have no gradient buckets, so no exposed communication."""
    phases_ms = {name: ms for name, ms in DDP_MS.items() if name != "exposed_comm"}
    fsdp = replace(DDP, strategy="fsdp", phases_ms=phases_ms)
    path = write_sweep(tmp_path, [Spec(), DDP, fsdp])
    for planned, folder in SweepFolder(path).cells():
        if "fsdp" in planned.name:
            result = folder.load_result()
            ranks = tuple(replace(rank, gradient_buckets=None) for rank in result.ranks)
            folder.save_result(replace(result, ranks=ranks))
    table = communication.seed_table(analyse(load_sweep(path)))
    assert set(column(table, "configuration")) == {"large ddp x2", "each"}
    assert len(table.rows) == len(set(column(table, "row"))) == 5


def test_throttling_is_told_with_how_often(tmp_path: Path) -> None:
    """Each GPU of the recording was at its power cap all the time, one of one and two of two."""
    found = analyse(load_sweep(RESULTS / "h200x2_gpt2"))
    assert not [line for line in faults.lines(found) if "held back" in line]
    lines = [line for line in doubts.warnings(found) if "held back" in line]
    held = {
        device.label
        for config in found.measured
        for run in config.runs
        if run.usage is not None
        for device in run.usage.devices
        if device.throttle_reasons and device.throttled_share == 1.0
    }
    assert len(lines) == len(held) == 2
    for line, label in zip(lines, sorted(held), strict=True):
        assert f": {label} was held back" in line
        assert line.endswith(
            " was held back by power cap in 100 % of its samples, no fault in a GPU that works hard"
        )


def test_heat_beside_a_power_cap_is_a_fault() -> None:
    found = analyse(load_sweep(RESULTS / "h200x2_gpt2"))
    (config, *_) = found.measured
    run = config.runs[0]
    assert run.usage is not None
    reasons = ("power cap", "thermal slowdown (hardware)")
    hot = tuple(
        replace(device, throttle_reasons=reasons if device.throttle_reasons else ())
        for device in run.usage.devices
    )
    heated = replace(config, runs=(replace(run, usage=replace(run.usage, devices=hot)),))
    found = replace(found, configurations=(heated,))
    (line,) = [line for line in faults.lines(found) if "held back" in line]
    assert line.endswith(
        "held back by power cap, thermal slowdown (hardware) in 100 % of its samples"
    )
    assert not [line for line in doubts.warnings(found) if "held back" in line]


def test_share_and_rate_of_mfu_are_of_the_same_runs(tmp_path: Path) -> None:
    found = analysed(tmp_path, *repeats(Spec(), [1.0, 1.0, 1.0]))
    (config,) = found.measured
    one, other = (Mfu("data sheet", tflops / 100, tflops, 100.0, "a sheet") for tflops in (20, 45))
    results = (MfuResult((one,), {}), MfuResult((), {}), MfuResult((other,), {}))
    (line,) = findings.mfu(replace(found, mfu={config.config_id: results}))
    assert line.partition(": ")[2].startswith("30.0 "), "the geometric mean of 20 and 45"
    assert "(30.0 of 100 TFLOP/s" in line
    assert "2 of 3 runs" in line


def test_percentiles_and_utilisation_stand_beside_what_they_are_of(tmp_path: Path) -> None:
    found = analysed(tmp_path, *repeats(Spec(), [1.0, 1.0]), DDP)
    table = tables.resource_table(found)
    (config, *_) = found.measured
    throughputs = [run.throughput for run in config.runs if run.throughput]
    steps = throughputs[0].steps
    readings = sum(d.samples for run in config.runs if run.usage for d in run.usage.devices)
    (percentiles,) = [h for h in table.headers if h.startswith("p50 / p99")]
    (utilisation,) = [h for h in table.headers if h.startswith("utilisation per device")]
    assert steps < 100 and all(t.step_time_ms.p99 is None for t in throughputs)
    assert column(table, percentiles)[0].endswith(f" / - (n=2x{steps})")
    assert column(table, utilisation)[0].endswith(f" (n={readings})")
    plain = json.loads(export.as_json(found))["configurations"][0]["runs"][0]
    times = plain["throughput"]["step_time_ms"]
    assert (times["p99"], times["n"], set(times["missing"])) == (None, steps, {"p99"})
    assert plain["usage"]["devices"][0]["utilization_readings"] == readings / 2


def test_a_gpu_older_than_its_profile_gets_an_mfu_that_names_the_present_one() -> None:
    found = analyse(load_sweep(RECORDING))
    lines = findings.mfu(found)
    assert [line.partition(": ")[0] for line in lines] == [c.label for c in found.measured]
    for line in lines:
        assert "% of the data sheet (" in line
        assert "by conf/hardware/h200.yaml as it is now: the records, made before, name no" in line


def test_what_an_image_is_labelled_with_is_no_setting_of_nccl() -> None:
    found = analyse(load_sweep(RESULTS / "h200x2_gpt2"))
    records = [cell.provenance for cell in found.sweep.cells]
    assert all(one and "NCCL_VERSION" in one.environment for one in records)
    lines = [line for line in provenance.provenance_lines(found) if "NCCL settings" in line]
    assert lines == ["NCCL settings: NCCL_NVLS_ENABLE=0"]


def test_compute_bound_is_explained_where_it_stands(tmp_path: Path) -> None:
    for name, times in (("h200x2_gpt2", 1), ("h200x2_small", 0)):
        text = report.build(RESULTS / name, tmp_path / name).markdown.read_text()
        assert (": compute-bound (" in text) is bool(times)
        assert text.count("*Compute-bound* is a GPU that is busy") == times


def test_the_spread_of_the_doctors_times_is_explained_where_it_stands(tmp_path: Path) -> None:
    kept = with_known_code(RESULTS / "h200x2_anatomy" / "nvlink", tmp_path / "sweep")
    text = report.build(kept).markdown.read_text()
    assert text.count("*spread* is from the fastest to the slowest") == 1
    assert "17.7" not in text, "the total of a window in which ranks waited"


def test_points_of_a_curve_are_joined_by_devices_from_one_on(pair: Pair) -> None:
    wider = replace(with_speedup(pair, 3.0), devices=4)
    axes = Figure().subplots()
    given = [wider, with_speedup(pair, 1.6)]
    ratio_points(axes, given, lambda p: p.speedup, "ddp", 0, 0.0, joined=True)
    joined, points, *_caps = axes.get_lines()
    assert [list(joined.get_xdata()), list(joined.get_ydata())] == [[1, 2, 4], [1, 1.6, 3.0]]
    assert list(points.get_xdata()) == [2, 4]
    bare = Figure().subplots()
    ratio_points(bare, given, lambda p: p.speedup, "ddp", 0, 0.0)
    assert [1, 2, 4] not in [list(line.get_xdata()) for line in bare.get_lines()]


def listing(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_looking_at_kept_records_need_not_touch_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep, out = write_sweep(tmp_path / "sweep", [Spec(), DDP]), tmp_path / "out"
    before = listing(sweep)
    assert main(["report", str(sweep), "--out", str(out), "--study"]) == 0
    assert listing(sweep) == before
    assert {"report.md", "results.json", "throughput.png"} <= set(listing(out))
    assert any(name.startswith("study/") for name in listing(out))
    printed = capsys.readouterr().out
    assert f"report: {out}/report.md, written with " in printed
    assert main(["report", str(sweep), "--out", str(out)]) == 0
    assert f"report: {out}/report.md, written over the earlier one with " in capsys.readouterr().out


def test_a_report_is_not_mixed_with_other_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep, out = write_sweep(tmp_path / "sweep", [Spec(), DDP]), tmp_path / "out"
    out.mkdir()
    (out / "report.md").write_text("of a person")
    assert main(["report", str(sweep), "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(
        f"scalewise report: --out: found {out}, which holds other files; allowed"
    )
    assert error.count("\n") == 1
    assert listing(out) == {"report.md": b"of a person"}


def test_a_folder_that_takes_no_report_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = write_sweep(tmp_path / "sweep", [Spec(), DDP])
    (sweep / "report").write_text("a file where the folder should be")
    assert main(["report", str(sweep)]) == 2
    error = capsys.readouterr().err
    assert error == (
        f"scalewise report: cannot write into {sweep}/report: File exists; give another folder: "
        "--out FOLDER\n"
    )
