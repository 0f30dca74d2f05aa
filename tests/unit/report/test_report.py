"""Reports of whole, poor and broken sweeps: every figure traced back to what was recorded."""

import csv
import errno
import json
import re
import shutil
import struct
from dataclasses import replace
from io import StringIO
from itertools import pairwise
from pathlib import Path

import pytest
from recorded import DDP, DDP_MS, SINGLE_MS, START, Spec, repeats, write_sweep
from rich.console import Console
from scalewise.report.devices import NAMES as DEVICE_PLOTS
from scalewise.report.doctor import rate_text
from scalewise.report.plots_scaling import speedup_efficiency

from scalewise import report
from scalewise.analysis.balance import grade
from scalewise.analysis.load import load_sweep
from scalewise.analysis.summary import analyse
from scalewise.explain import explain, is_the_hosts_fault
from scalewise.records import CellFolder, RankError, RecordError
from scalewise.report import tables
from scalewise.report.export import as_csv
from scalewise.terminal import open_console

RESULTS = Path(__file__).parents[3] / "docs" / "results"
EXAMINED = {
    name: RESULTS / "h200x2_anatomy" / name / "doctor-ddp-r0-19e13833" / "doctor.json"
    for name in ("nvlink", "p2p_off")
}
STATE = '"optimizer_state_bytes": 1048576'
STEADY = [1.0, 1.01, 0.99, 1.005, 0.995]


def printed(path: Path, width: int = 200) -> str:
    console = Console(file=StringIO(), width=width)
    report.print_console(path, console)
    file = console.file
    assert isinstance(file, StringIO)
    return file.getvalue()


def png_size(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    return width, height


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two workloads, one and two GPUs, five repeats, and cells that failed or were skipped."""
    slow = replace(DDP, model="medium", slow_ranks_ms={1: 2.0})
    specs = [
        *repeats(Spec(), STEADY),
        *repeats(DDP, STEADY),
        *repeats(Spec(model="medium"), STEADY),
        *repeats(slow, STEADY),
        replace(DDP, model="xl", outcome="failed"),
        replace(DDP, model="xxl", outcome="skipped"),
    ]
    return write_sweep(tmp_path_factory.mktemp("sweep"), specs)


@pytest.fixture(scope="module")
def files(whole: Path) -> report.ReportFiles:
    return report.build(whole)


def test_every_file_is_written(whole: Path, files: report.ReportFiles) -> None:
    assert files.markdown == whole / "report" / "report.md"
    assert {p.name for p in files.plots} - set(DEVICE_PLOTS) == {
        "throughput.png",
        "speedup_efficiency.png",
        "step_times.png",
        "step_anatomy.png",
        "loss.png",
        "balance.png",
        "balance_history.png",
    }
    for plot in files.plots:
        width, height = png_size(plot)
        assert 600 < width < 3000
        assert 200 < height < 4000
        assert f"]({plot.name})" in files.markdown.read_text()


def test_json_holds_every_run_and_the_ratios_follow_from_them(files: report.ReportFiles) -> None:
    results = json.loads(files.json.read_text())
    by_label = {c["label"]: c for c in results["configurations"]}
    ddp = by_label["large ddp x2"]
    assert [run["repeat"] for run in ddp["runs"]] == [0, 1, 2, 3, 4]
    expected = sum(SINGLE_MS.values()) / sum(DDP_MS.values())
    assert ddp["comparison"]["speedup"]["value"] == pytest.approx(expected, rel=1e-4)
    assert ddp["comparison"]["verdict"] == "beneficial"
    assert ddp["runs"][0]["throughput"]["samples"] == 50 * 128
    assert ddp["runs"][0]["shards"]["verdict"] == "sharded"
    assert by_label["large single x1"]["comparison"] is None
    assert {u["state"] for u in results["unfinished"]} == {"failed", "skipped"}


def test_the_loss_reached_says_which_loss_it_is(tmp_path: Path) -> None:
    scored = write_sweep(tmp_path, [Spec(), DDP])
    assert "train_loss reached" in tables.resource_table(analyse(load_sweep(scored))).headers
    for record in (*scored.glob("*-ddp-*/metrics/*"), *scored.glob("*-ddp-*/result.json")):
        record.write_text(record.read_text().replace("train_loss", "val_loss"))
    found = analyse(load_sweep(scored))
    table = tables.resource_table(found)
    column = table.headers.index("loss reached")
    assert [re.sub(r"[\d.]+", "N", row[column]) for row in table.rows] == ["N (train)", "N (val)"]
    lines = csv.DictReader(StringIO(as_csv(found)))
    assert [line["loss_name"] for line in lines] == ["train_loss", "val_loss"]


def test_csv_has_units_and_leaves_what_is_missing_empty(files: report.ReportFiles) -> None:
    text = files.csv.read_text()
    rows = {row["configuration"]: row for row in csv.DictReader(StringIO(text))}
    ddp, single = rows["large ddp x2"], rows["large single x1"]
    assert float(ddp["global_samples_per_s"]) == pytest.approx(128 / 6.2e-3, rel=1e-3)
    assert float(ddp["exposed_comm_ms"]) == pytest.approx(0.6, rel=1e-3)
    assert single["exposed_comm_ms"] == ""
    assert single["speedup_ratio"] == ""
    low, high = float(ddp["speedup_ratio_low95"]), float(ddp["speedup_ratio_high95"])
    assert low < float(ddp["speedup_ratio"]) < high
    assert "out of memory" in rows["xl ddp x2"]["reason"]
    assert rows["xl ddp x2"]["global_samples_per_s"] == ""


def test_energy_per_million_samples_is_power_over_throughput(files: report.ReportFiles) -> None:
    results = json.loads(files.json.read_text())
    run = next(c for c in results["configurations"] if c["label"] == "large ddp x2")["runs"][0]
    per_s = run["throughput"]["global_samples_per_s"]
    assert run["energy_j_per_million_samples"] == pytest.approx((400 + 410) / per_s * 1e6)


def test_markdown_answers_first_and_names_what_went_wrong(files: report.ReportFiles) -> None:
    text = files.markdown.read_text()
    answer, _, rest = text.partition("## Scaling")
    assert "**large ddp x2: beneficial.**" in answer
    assert "exposed communication takes 0.6 of 6.2 ms" in answer
    assert "22 cells: 20 done, 1 failed, 1 skipped" in answer
    assert "medium ddp x2, main limit: straggler" in rest or "straggler" in answer
    for needed in (
        "CUDA out of memory",
        "this host has 1",
        "wandb incomplete: 12 rows handed over, 9 read back",
        "rank 1 is ready 2.00 ms after",
        "NVIDIA H200",
        "driver: 570.86.15",
        "NCCL: 2.26.2",
        "commit: a1b2c3d4e5f6",
        "Memory balance says nothing",
        "software power cap",
    ):
        assert needed in rest, needed


def test_tables_have_as_many_cells_as_headers(files: report.ReportFiles) -> None:
    lines = files.markdown.read_text().splitlines()
    tables_found = [line for line in lines if line.startswith("|")]
    assert tables_found
    for above, below in pairwise(tables_found):
        follows = lines[lines.index(above) + 1] == below
        assert not follows or above.count(" | ") == below.count(" | ")


def test_no_folder_of_the_machine_is_in_the_report(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, [Spec(), DDP])
    plan = path / "sweep.json"
    plan.write_text(plan.read_text().replace('"train.py"', '"/home/someone/train.py"'))
    files = report.build(path)
    assert "`train.py -m strategy=single,ddp repeats=5`" in files.markdown.read_text()
    for file in (files.markdown, files.json, files.csv):
        assert "someone" not in file.read_text()


def test_the_console_says_the_same(whole: Path) -> None:
    text = printed(whole)
    assert "large ddp x2: beneficial." in text
    assert "20,650 ± 200" in text
    assert "fault: " in text
    assert "tracker: " in text


def test_a_narrow_terminal_still_shows_the_verdicts(whole: Path) -> None:
    text = printed(whole, width=80)
    assert "large ddp x2: beneficial." in text
    # No cell of a table is broken over lines, and none is left out.
    rows = [line for line in text.splitlines() if line.startswith(" large ddp x2 ")]
    (row,) = [row for row in rows if "20,650 ± 200" in row]
    assert row.rstrip().endswith("beneficial")
    lines = printed(whole, width=400).splitlines()
    wide = [line for line in lines if line.startswith(" large ddp x2 ")]
    assert len(wide) == 3  # scaling, resources and cost
    assert words_of(wide) <= words_of(rows)
    tables_end = text.index("large ddp x2: beneficial")
    assert max(len(line) for line in text[:tables_end].splitlines()) <= 80


def words_of(rows: list[str]) -> set[str]:
    return {word for row in rows for word in re.split(r"\s{2,}", row.strip())}


def test_names_of_rows_fold_before_a_figure_does(tmp_path: Path) -> None:
    name = "a_model_with_a_name_that_is_wider_than_the_terminal_it_is_shown_on"
    path = write_sweep(tmp_path, [*repeats(Spec(model=name), STEADY)])
    text = printed(path, width=60)
    assert "12,800 ± 130" in text
    assert max(map(len, text.partition("Nothing ran")[0].splitlines())) <= 60


def test_a_pipe_has_no_width(
    whole: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    report.print_console(whole, open_console())
    text = capsys.readouterr().out
    (row,) = [line for line in text.splitlines() if " large ddp x2 " in line and "20,650" in line]
    assert row.rstrip().endswith("beneficial")
    assert "large ddp x2: beneficial. speedup 1.61 on 2 devices (95 % interval 1.59-1.63)" in text


def test_what_is_the_same_in_every_row_is_said_once_above(whole: Path, tmp_path: Path) -> None:
    same = (
        "the same in every row: dataset=tabular, precision=fp32, execution=eager, optimizer=adam, "
        "lr=0.001, 128 samples a step of all devices, 60 steps (10 to warm up), seed=7, on "
        "NVIDIA H200"
    )
    assert same in printed(whole)
    specs = [Spec(batch_size=size, config={"optimizer": {"name": "adam", "lr": lr}})
             for size in (32, 64) for lr in (0.1, 0.2)]  # fmt: skip
    text = printed(write_sweep(tmp_path, specs))
    assert "precision=fp32, execution=eager, optimizer=adam, 60 steps" in text
    for size in (32, 64):
        for lr in (0.1, 0.2):
            assert f" large single x1 batch_size={size} lr={lr} " in text


def test_a_failed_cell_says_at_which_line_and_in_which_log(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, [Spec(), replace(DDP, outcome="failed")])
    folder = CellFolder(path / "001-large-ddp-r0")
    text = 'Traceback (most recent call last):\n  File "/home/user/my_model.py", line 12, in f\n'
    folder.save_rank_error(RankError(1, START + 1, "exception", "boom", text))
    folder.log_path(1, "err").parent.mkdir()
    folder.log_path(1, "err").touch()
    lines = printed(path, width=60).splitlines()
    (at,) = [i for i, line in enumerate(lines) if line.startswith("failed: 001-large-ddp-r0: rank")]
    assert lines[at + 1 : at + 3] == [
        "  raised at /home/user/my_model.py:12",
        f"  log: {folder.log_path(1, 'err')}",
    ]
    page = report.build(path).markdown.read_text()
    assert "| my_model.py:12 | 001-large-ddp-r0/logs/rank1.err |" in page
    assert str(tmp_path) not in page.partition("```text")[0]


def test_what_a_doctor_found_and_advises_is_printed(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, [Spec(config={"workload": "doctor"})])
    shutil.copy(EXAMINED["p2p_off"], path / "doctor.json")
    examined = json.loads((path / "doctor.json").read_text())
    lines = printed(path, width=10_000).splitlines()
    assert examined["findings"]
    for finding in examined["findings"]:
        (line,) = [line for line in lines if line.startswith(f"doctor: {finding['severity']}: ")
                   and finding["text"].rstrip(".") in line]  # fmt: skip
        assert finding["advice"] in line
        assert finding["evidence"] in line
    (path / "doctor.json").unlink()
    assert "doctor: " not in printed(path)


def test_copies_between_host_and_device_are_on_screen_and_on_the_page(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, [Spec(outcome="unfinished", config={"workload": "doctor"})])
    record = path / "doctor.json"
    shutil.copy(EXAMINED["nvlink"], record)
    plain = json.loads(record.read_text())
    for text in (printed(path, width=400), report.build(path).markdown.read_text()):
        for rank in plain["ranks"]:
            for direction, words in (("h2d", "host to device"), ("d2h", "device to host")):
                rates = [copy["gb_s"] for copy in rank["copies"]
                         if copy["kind"].startswith(direction)]  # fmt: skip
                (row,) = [line for line in text.splitlines()
                          if f" {rank['rank']}: NVIDIA" in line and words in line]  # fmt: skip
                assert len(rates) == 3
                assert all(f" {rate_text(rate)} " in row for rate in rates), row
        assert "not measured" not in text
    plain["ranks"][1]["copies"] = []
    plain["ranks"][1]["missing"] = {"host staging": "cudaHostAlloc failed"}
    plain["ranks"][0]["copies"] = plain["ranks"][0]["copies"][:1]
    plain["ranks"][0]["stage"] = "copies"
    record.write_text(json.dumps(plain))
    text = printed(path, width=400)
    said = "doctor: copies between host and rank 1 not measured: host staging: cudaHostAlloc failed"
    assert said in text
    assert "doctor: copies between host and rank 0 not measured: its examination ended at" in text
    for facts in plain["devices"]:
        facts["device"]["kind"] = "cpu"
    record.write_text(json.dumps(plain))
    assert "no copies between host and device were timed: these devices are cores" in printed(path)


def test_the_verdict_is_the_same_word_on_screen_and_in_the_files(
    files: report.ReportFiles,
) -> None:
    rows = {r["configuration"]: r for r in csv.DictReader(StringIO(files.csv.read_text()))}
    assert rows["large single x1"]["verdict"] == "baseline"
    assert rows["large ddp x2"]["verdict"] == "beneficial"
    assert rows["xl ddp x2"]["verdict"] == ""
    found = {c["label"]: c for c in json.loads(files.json.read_text())["configurations"]}
    assert found["large single x1"]["verdict"] == "baseline"


def test_a_command_with_bytes_that_are_no_text_has_its_report(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, [Spec(), DDP])
    plan = path / "sweep.json"
    plan.write_text(plan.read_text().replace('"train.py"', '"train.py", "seed=caf\\udce9"'))
    files = report.build(path)
    assert "caf\\udce9" in files.markdown.read_text()


def test_the_grade_stands_beside_the_cv_that_it_grades(tmp_path: Path) -> None:
    specs = [
        replace(DDP, repeat=i, run_factor=f, slow_ranks_ms={1: ms})
        for i, (f, ms) in enumerate([(1.0, 0.4), (1.0, 0.9), (1.01, 1.2)])
    ]
    found = tables.balance_table(analyse(load_sweep(write_sweep(tmp_path, specs))))
    (row,) = found.rows
    by_header = dict(zip(found.headers, row, strict=True))
    worst = float(by_header["worst run (%)"])
    assert grade(worst) == "fair"
    mean = float(by_header["arrival CV (%)"].split(" ")[0])
    assert by_header["grade"] == grade(mean) == "good"


def test_optimizer_state_is_a_column_where_optimizers_are_compared(tmp_path: Path) -> None:
    def headers(path: Path, *specs: Spec) -> tuple[str, ...]:
        sweep = load_sweep(write_sweep(path, specs))
        for folder in path.glob("0*"):
            result = folder / "result.json"
            text = result.read_text().replace('"optimizer_state_bytes": null', STATE)
            result.write_text(text)
        return tables.resource_table(analyse(load_sweep(sweep.path))).headers

    sgd = {"optimizer": {"name": "sgd", "lr": 0.1}}
    column = "optimizer state per rank (MiB)"
    assert column in headers(tmp_path / "a", Spec(), Spec(config=sgd))
    assert column not in headers(tmp_path / "b", Spec(), Spec(model="medium", config=sgd))
    assert column not in headers(tmp_path / "c", Spec(), DDP)


def test_an_emulated_run_is_labelled_first_thing_of_its_provenance(tmp_path: Path) -> None:
    marks = ("NCCL_P2P_DISABLE=1",)
    path = write_sweep(tmp_path, [Spec(emulated=marks), replace(DDP, emulated=marks)])
    text = report.build(path).markdown.read_text()
    assert "- EMULATED: NCCL_P2P_DISABLE=1" in text


def test_seed_004s_fault_is_named_in_the_report(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, [Spec(), replace(DDP, sharded=False)])
    assert "every rank sees all data: each of 2 ranks" in report.build(path).markdown.read_text()


@pytest.mark.parametrize(
    ("specs", "needed", "plots"),
    [
        (
            [Spec()],
            "nothing to compare",
            {"throughput.png", "step_times.png", "step_anatomy.png", "loss.png"},
        ),
        ([Spec(outcome="failed"), replace(DDP, outcome="skipped")], "No cell finished", set()),
        (
            [Spec(outcome="unfinished")],
            "no record of its end: still running, not started, or nothing could be written",
            set(),
        ),
        (
            [Spec(), replace(DDP, seed=99)],
            "not comparable.** large single x1 differs in seed: 7 against 99",
            {"throughput.png", "step_times.png", "step_anatomy.png", "loss.png", "balance.png"},
        ),
        (
            [Spec(kind="cpu"), replace(DDP, kind="cpu")],
            "peak RSS per rank (MiB)",
            {
                "throughput.png",
                "speedup_efficiency.png",
                "step_times.png",
                "step_anatomy.png",
                "loss.png",
                "balance.png",
            },
        ),
    ],
)
def test_a_poor_sweep_still_has_a_useful_report(
    tmp_path: Path, specs: list[Spec], needed: str, plots: set[str]
) -> None:
    path = write_sweep(tmp_path, specs)
    files = report.build(path)
    assert needed in files.markdown.read_text()
    assert {p.name for p in files.plots} - {*DEVICE_PLOTS, "balance_history.png"} == plots
    assert printed(path)
    json.loads(files.json.read_text())


def test_a_plot_that_no_longer_applies_is_removed(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, [Spec(), DDP])
    report.build(path)
    (next(path.glob("001-*")) / "result.json").unlink()
    report.build(path)
    assert not (path / "report" / "speedup_efficiency.png").exists()


def test_a_diverged_loss_is_said_and_not_drawn(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, [Spec(final_loss=float("nan"))])
    # A record cannot hold NaN: the objective and the last metric are None there.
    files = report.build(path)
    assert "diverged" in files.markdown.read_text()
    assert not (path / "report" / "loss.png").exists()


def test_no_folder_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="give the folder of a sweep"):
        report.build(tmp_path)


def test_a_script_of_ones_own_is_advised_what_it_can_do(tmp_path: Path) -> None:
    """It has neither repeats nor strategy to set, in no file of its report."""
    own = {"tracking": {"name": "monitor"}}
    specs = [replace(Spec(), config=own), replace(Spec(), config=own, batch_size=64)]
    files = report.build(write_sweep(tmp_path, specs))
    text = files.markdown.read_text()
    assert (
        "one run does not tell how far others would lie from it: run the script 4 more times into "
        "the same folder" in text
    )
    assert "run the script on several too, into the same folder, for a verdict." in text
    typed = "`train.py -m strategy=single,ddp repeats=5`"  # what the records say was typed
    assert typed in text
    for advice in ("repeats=", "strategy=single,ddp"):
        assert advice not in text.replace(typed, "")


def test_an_interval_of_two_wild_runs_does_not_dwarf_the_speedups(tmp_path: Path) -> None:
    specs = [*repeats(Spec(), [1.0, 1.02]), *repeats(DDP, [1.0, 4.0])]
    found = analyse(load_sweep(write_sweep(tmp_path, specs)))
    (pair,) = found.pairs
    assert pair.speedup.interval is not None
    assert pair.speedup.interval.high > 100
    figure = speedup_efficiency(found)
    assert figure is not None
    assert [axes.get_ylim()[1] for axes in figure.axes] == pytest.approx([3.2, 1.6])


def test_a_disk_without_room_for_the_report_is_the_hosts_fault_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = write_sweep(tmp_path, [Spec()])

    def full(path: Path, *args: object, **named: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", path.name)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left on device") as raised:
        report.build(sweep)
    assert is_the_hosts_fault(raised.value)
    assert explain(raised.value) == "report.md: No space left on device"
