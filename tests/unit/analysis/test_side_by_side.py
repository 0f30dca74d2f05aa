"""Rows of several sweeps or devices side by side, winners, and tasks that ran together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.recorded import DDP, Spec, analysed, repeats, step_ms, swept
from scalewise.analysis import compare, concurrent_trainings, workloads
from scalewise.analysis.comparison import find_factors
from scalewise.analysis.configuration import configurations

STEADY = [1.0, 1.01, 0.99]
LINK = ("NCCL_P2P_DISABLE=1 on GPUs with NVLink",)


def runs(*specs: Spec, factors: Sequence[float] = STEADY, slower: float = 1.0) -> list[Spec]:
    return [one for spec in specs for one in repeats(spec, [f * slower for f in factors])]


def test_a_metric_has_a_winner_only_where_a_tie_is_excluded(tmp_path: Path) -> None:
    h200 = analysed(tmp_path / "a", *runs(Spec(), DDP))
    a10g = [replace(s, device_name="NVIDIA A10G") for s in (Spec(), DDP)]
    slower = analysed(tmp_path / "b", *runs(*a10g, slower=2.0))
    (work,) = workloads([h200, slower])
    assert [entry.name for entry in work.entries] == [
        "A single x1", "A ddp x2", "B single x1", "B ddp x2"
    ]  # fmt: skip
    fastest = work.fastest
    assert fastest.entry is work.entries[1]
    assert fastest.advantage is not None
    assert fastest.advantage.value == pytest.approx(step_ms(Spec()) / step_ms(DDP), rel=0.01)
    # Memory is the same number in all rows: nobody wins.
    memory = next(one for one in work.winners if one.metric.words == "peak memory")
    assert (memory.entry, len(memory.rivals)) == (None, 4)
    noisy = analysed(tmp_path / "c", *runs(*a10g, factors=[0.7, 1.0, 1.4]))
    (open_,) = workloads([h200, noisy])
    assert open_.fastest.entry is None
    assert {e.name for e in open_.fastest.rivals} >= {"A ddp x2", "B ddp x2"}


def test_two_runs_win_nothing(tmp_path: Path) -> None:
    (work,) = workloads([analysed(tmp_path, *runs(Spec(), DDP, factors=STEADY[:2]))])
    assert {winner.entry for winner in work.winners} == {None}


def test_devices_of_one_folder_stand_side_by_side_and_unlike_memories_do_not_compete(
    tmp_path: Path,
) -> None:
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
    assert (found.factor, found.chosen) == ("link", True)
    assert found.matches == declared.matches
    (match,) = found.matches
    assert match.change == "slower"
    assert match.ratio.value == pytest.approx(0.8, rel=0.01)
    assert {d.field for d in match.changed} == {"emulated", "hardware.nccl.NCCL_P2P_DISABLE"}


@pytest.mark.parametrize(
    ("changes", "factor"),
    [
        ({}, ""),
        ({"commit": "b" * 12}, "code"),
        ({"commit": "b" * 12, "seed": 8}, "code,seed"),
        ({"device_name": "NVIDIA A10G"}, "gpu"),
    ],
)
def test_the_fewest_factors_that_differ_are_found(
    tmp_path: Path, changes: dict[str, str], factor: str
) -> None:
    a = configurations(swept(tmp_path / "a", Spec(), DDP))
    b = configurations(
        swept(tmp_path / "c", *(replace(spec, **changes) for spec in (Spec(), DDP)))  # type: ignore[arg-type]
    )
    assert set(find_factors(a, b).split(",")) == set(factor.split(","))
