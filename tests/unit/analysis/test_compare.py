"""B against A under one declared factor."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fakes import recorded
from fakes.recorded import DDP, STEADY, Spec, analysed, repeats, step_ms, swept, write_sweep
from fakes.step_files import BLOCK_BYTES
from scalewise.analysis import compare, concurrent_trainings, load_sweep, workloads
from scalewise.analysis.comparison import find_factors
from scalewise.analysis.configuration import configurations
from scalewise.analysis.statistics import estimate_ratio
from scalewise.records import SweepFolder
from scalewise.report import comparison_section


def runs(
    *specs: Spec, factors: Sequence[float] = recorded.STEADY_3, slower: float = 1.0
) -> list[Spec]:
    return [one for spec in specs for one in repeats(spec, [f * slower for f in factors])]


@pytest.mark.parametrize(
    ("count", "slower", "said"),
    [(1, 1.5, "0.67 from 1 and 1"), (2, 3.0, "0.33 (95 % interval 0.32-0.34) from 2 and 2")],
)
def test_fewer_than_three_runs_a_side_decide_nothing_however_far_apart(
    tmp_path: Path, count: int, slower: float, said: str
) -> None:
    a = swept(tmp_path / "a", *runs(Spec(), DDP, factors=STEADY[:count]))
    new = [replace(s, commit="bbbbbbbbbbbb") for s in (Spec(), DDP)]
    b = swept(tmp_path / "b", *runs(*new, factors=STEADY[:count], slower=slower))
    found = compare(a, b, "code")
    told = {match.label: match.change for match in found.matches}
    assert told == dict.fromkeys(("large single x1", "large ddp x2"), "undecided")
    assert f": undecided: {said} runs; a verdict" in "\n".join(comparison_section(found).texts)


def test_a_second_difference_refuses(tmp_path: Path) -> None:
    a = swept(tmp_path / "a", Spec())
    b = swept(tmp_path / "b", Spec(commit="bbbbbbbbbbbb", device_name="NVIDIA A10G"))
    found = compare(a, b, "code")
    assert found.matches == ()
    assert "device: NVIDIA H200 against NVIDIA A10G" in found.unmatched[0].reason
    assert len(compare(a, swept(tmp_path / "c", Spec(device_name="A10G")), "gpu").matches) == 1
    wide = swept(tmp_path / "d", Spec(config={"head": {"_target_": "m.B", "width": 8}}))
    for name, own in (("m.A", {"head": {"_target_": "m.A"}}), ("absent", {})):
        (other,) = compare(swept(tmp_path / name, Spec(config=own)), wide, "gpu").unmatched
        assert other.reason.endswith(f" differs in head._target_: {name} against m.B"), "no width"


def test_a_row_is_matched_with_the_one_that_differs_least_in_what_is_freed(tmp_path: Path) -> None:
    rates = [replace(Spec(), config={"optimizer": {"name": "adam", "lr": lr}}) for lr in (1, 2)]
    both = swept(tmp_path / "a", *rates)
    assert [match.changed for match in compare(both, both, "optimizer").matches] == [(), ()]


def test_an_interval_excludes_1_where_a_change_is_shown_and_only_there(tmp_path: Path) -> None:
    """0.45 (0.25-0.80) stood under "no difference shown": corrected was the p-value alone."""
    models = [Spec(model=f"m{i}") for i in range(6)]
    sides = {"a": [0.955, 1.0, 1.047], "b": [1.098, 1.15, 1.204]}
    for name, factors in sides.items():
        specs = [replace(m, commit=name * 12) for m in models]
        write_sweep(tmp_path / name, runs(*specs, factors=factors))
    # One of them is far off, so that something is shown beside what is not.
    plain = runs(*(replace(s, commit="c" * 12) for s in models), factors=sides["b"])
    steady = repeats(Spec(model="m0", commit="c" * 12), [3.0, 3.0001, 2.9999])
    write_sweep(tmp_path / "c", [*steady, *(s for s in plain if s.model != "m0")])
    for other in ("b", "c"):
        found = compare(load_sweep(tmp_path / "a"), load_sweep(tmp_path / other), "code")
        for match in found.matches:
            interval = match.ratio.interval
            assert (interval.low <= 1 <= interval.high) == (match.change == "no difference shown")
    uncorrected = estimate_ratio(*([1 / f for f in sides[side]] for side in "ba")).interval
    assert uncorrected.high < 1, "without correction a change would stand there"
    assert {m.change for m in found.matches} == {"slower", "no difference shown"}


def test_a_run_whose_steps_are_cut_off_is_named_and_not_counted(tmp_path: Path) -> None:
    a, _ = (swept(tmp_path / name, *runs(Spec(), DDP)) for name in "ab")
    (planned, folder), *_ = SweepFolder(tmp_path / "b").cells()
    path = folder.steps_path(0)
    path.write_bytes(path.read_bytes()[: -40 * BLOCK_BYTES])
    found = compare(a, load_sweep(tmp_path / "b"), "code")
    assert [m.ratio.n for m in found.matches] == [(2, 3), (3, 3)]
    (left_out,) = found.left_out
    assert (left_out.side, left_out.cell) == ("B", planned.name)
    assert left_out.fault == "steps/rank0.bin: 20 of 60 step rows are there"
    assert f"B, {planned.name}: left out: {left_out.fault}" in comparison_section(found).texts
    assert compare(load_sweep(tmp_path / "b"), a, "code").left_out[0].side == "A"


def test_a_result_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    a, _ = (swept(tmp_path / name, Spec()) for name in "ab")
    ((_, folder),) = SweepFolder(tmp_path / "b").cells()
    (folder.path / "result.json").write_text("{")
    found = compare(a, load_sweep(tmp_path / "b"), "code")
    assert found.left_out[0].fault.startswith("result.json: cannot be read as JSON")
    assert "its result cannot be used: result.json" in found.unmatched[0].reason


# Rows of several sweeps or devices side by side, winners, and tasks that ran together.
LINK = ("NCCL_P2P_DISABLE=1 on GPUs with NVLink",)


def test_a_metric_has_a_winner_only_where_a_tie_is_excluded(tmp_path: Path) -> None:
    h200 = analysed(tmp_path / "a", *runs(Spec(), DDP))
    a10g = [replace(s, device_name="NVIDIA A10G") for s in (Spec(), DDP)]
    (work,) = workloads([h200, analysed(tmp_path / "b", *runs(*a10g, slower=2.0))])
    assert [entry.name for entry in work.entries] == [
        "A single x1", "A ddp x2", "B single x1", "B ddp x2"
    ]  # fmt: skip
    fastest = work.fastest
    assert fastest.entry is work.entries[1]
    assert (work.cheapest.metric.words, work.cheapest.entry) == ("cost", work.entries[2])
    assert fastest.advantage.value == pytest.approx(step_ms(Spec()) / step_ms(DDP), rel=0.01)
    # Memory is the same number in all rows: nobody wins.
    memory = next(one for one in work.winners if one.metric.words == "peak memory")
    assert (memory.entry, len(memory.rivals)) == (None, 4)
    (open_,) = workloads([h200, analysed(tmp_path / "c", *runs(*a10g, factors=[0.7, 1.0, 1.4]))])
    assert open_.fastest.entry is None
    assert {e.name for e in open_.fastest.rivals} >= {"A ddp x2", "B ddp x2"}
    weak = [replace(s, scaling="weak", phases_ms=Spec().phases_ms) for s in (Spec(), DDP)]
    (uneven,) = workloads([analysed(tmp_path / "d", *runs(*weak))])
    assert uneven.fastest.entry is uneven.entries[1]
    assert (uneven.winners[1].entry, uneven.winners[1].rivals) == (None, ()), "unlike batches"


def test_devices_of_a_folder_stand_side_by_side_and_memories_do_not_compete(tmp_path: Path) -> None:
    specs = [
        replace(one, repeat=one.repeat + 3 * (kind == "cpu"), kind=kind)
        for kind in ("cuda", "cpu")
        for one in runs(Spec())
    ]
    (work,) = workloads([analysed(tmp_path, *specs)])
    assert [e.config.leaves["device.name"] for e in work.entries] == ["H200", "CPU"]
    _, _, memory, _, cost = work.winners
    assert (memory.entry, memory.advantage) == (None, None)
    assert (cost.entry, len(cost.unmeasured)) == (None, 1), "a share of a CPU host has no price"


def test_tasks_that_trained_at_the_same_time_have_a_rate_in_all(tmp_path: Path) -> None:
    specs = [Spec(model="a"), Spec(model="b", batch_size=64)]
    (found,) = concurrent_trainings("A", analysed(tmp_path, *specs))
    assert found.tasks == ("a single x1", "b single x1")
    alone = sum(spec.batch_size / step_ms(spec) * 1e3 for spec in specs)
    assert found.samples_per_s.value == pytest.approx(alone, rel=0.03)


def test_the_link_is_a_factor_and_is_found_as_the_one_that_differs(tmp_path: Path) -> None:
    off = {"hardware": {"name": "auto", "nccl": {"NCCL_P2P_DISABLE": 1}}}
    a = swept(tmp_path / "a", *runs(DDP))
    b = swept(tmp_path / "b", *runs(replace(DDP, emulated=LINK, config=off), slower=1.25))
    declared, found = compare(a, b, "link"), compare(a, b)
    assert ((found.factor, found.chosen), found.matches) == (("link", True), declared.matches)
    (match,) = found.matches
    assert (match.change, compare(b, a).matches[0].change) == ("slower", "faster")
    assert match.ratio.value == pytest.approx(0.8, rel=0.01)
    assert {d.field for d in match.changed} == {"emulated", "hardware.nccl.NCCL_P2P_DISABLE"}
    assert any(d.right == LINK[0] for d in match.changed)


@pytest.mark.parametrize(
    ("changes", "factor"),
    [
        ({}, ""),
        ({"commit": "b" * 12}, "code"),
        ({"commit": "b" * 12, "seed": 8}, "code"),
        ({"device_name": "NVIDIA A10G"}, "gpu"),
        ({"host": "dmi-ffffffffffff"}, "link"),  # gpu frees more fields
    ],
)
def test_the_fewest_factors_are_found(tmp_path: Path, changes: dict[str, str], factor: str) -> None:
    a = configurations(swept(tmp_path / "a", Spec(), DDP))
    b = configurations(
        swept(tmp_path / "c", *(replace(spec, **changes) for spec in (Spec(), DDP)))  # type: ignore[arg-type]
    )
    assert set(find_factors(a, b).split(",")) == set(factor.split(","))
