"""Who needs more repeats, as the records tell it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.recorded import (
    DDP,
    DDP_MS,
    STEADY,
    Spec,
    crowd,
    edit_ranks,
    repeats,
    swept,
    write_sweep,
)
from scalewise.analysis import Repeats, analyse, load_sweep
from scalewise.records import UNCOUNTED

NOISY = [1.0, 1.5, 0.7, 1.3, 0.8]


def auto(spec: Spec, **limits: float) -> Spec:
    return replace(spec, config={"repeats": "auto", **limits})


def assessed(path: Path, *specs: Spec) -> tuple[Repeats, ...]:
    return analyse(swept(path, *specs)).repeats


@pytest.mark.parametrize(
    ("factors", "limits", "expected"),
    [
        (STEADY[:3], {}, (3, None, "verdict")),
        ([1.0, 1.0], {}, (2, 3, None)),  # however clear
        (NOISY[:3], {}, (3, 4, None)),
        (NOISY, {"max_repeats": 5}, (5, None, "cap")),
    ],
)
def test_a_pair_is_repeated_until_it_is_decided(
    tmp_path: Path,
    factors: list[float],
    limits: dict[str, float],
    expected: tuple[int, int | None, str | None],
) -> None:
    single, multi = auto(Spec(), **limits), auto(DDP, **limits)
    specs = [*repeats(single, factors), *repeats(multi, [*factors[1:], factors[0]])]
    (found,) = assessed(tmp_path, *specs)
    assert (found.runs, found.wanted, found.because) == expected
    assert {member.devices for member in found.members} == {1, 2}


def test_what_a_pair_decided_stays_decided_when_its_single_gets_more_runs(tmp_path: Path) -> None:
    """Its twin also serves another partner; runs without a partner are no look."""
    before = assessed(tmp_path / "a", *repeats(auto(Spec()), STEADY[:3]),
                      *repeats(auto(DDP), STEADY[:3]))  # fmt: skip
    specs = [*repeats(auto(Spec()), [*STEADY[:3], 9.0, 0.1]), *repeats(auto(DDP), STEADY[:3])]
    after = assessed(tmp_path / "b", *specs)
    assert after[0].reason == before[0].reason
    (pair,) = analyse(load_sweep(tmp_path / "b")).pairs
    assert pair.speedup.n == (3, 3)
    assert pair.verdict == "pays"


def test_a_disturbed_baseline_decides_nothing_as_in_the_report(tmp_path: Path) -> None:
    """More than linear beside a crowd: the interval is narrow, and what is gained is not known."""
    fast = replace(DDP, kind="cpu", phases_ms={n: ms / 3 for n, ms in DDP_MS.items()})
    noisy = [1.0, 1.06, 0.94]
    specs = [*repeats(auto(Spec(kind="cpu")), STEADY[:3]), *repeats(auto(fast), noisy)]
    crowd(write_sweep(tmp_path, specs), "*-single-*")
    found = analyse(load_sweep(tmp_path))
    (pair,), (group,) = found.pairs, found.repeats
    assert pair.verdict == "undecided"
    assert (group.because, group.wanted) == (None, 4)
    assert [one.code for one in pair.remarks] == ["contention"]


@pytest.mark.parametrize("sides", ["*", "*-ddp-*"])
def test_where_samples_were_not_counted_no_speedup_is_told(tmp_path: Path, sides: str) -> None:
    write_sweep(tmp_path, [*repeats(auto(Spec()), STEADY[:3]), *repeats(auto(DDP), STEADY[:3])])
    edit_ranks(tmp_path, lambda rank: rank["missing"].update({UNCOUNTED: "within a graph"}), sides)
    for path in tmp_path.glob(f"{sides}/result.json"):
        told = {"global_batch_size": None, "per_device_batch_size": None}
        path.write_text(json.dumps({**json.loads(path.read_text()), **told}))
    (pair,) = analyse(load_sweep(tmp_path)).pairs
    assert [one.code for one in pair.invalid] == ["uncounted"]


def test_a_round_that_lost_a_half_is_no_pair_and_is_made_up_for(tmp_path: Path) -> None:
    """Round 1 failed on several devices: three runs of each are two pairs."""
    multi = [one for one in repeats(auto(DDP), STEADY[:4]) if one.repeat != 1]
    lost = replace(auto(DDP), repeat=1, outcome="failed")
    specs = [*repeats(auto(Spec()), STEADY[:3]), lost, *multi]
    (found,) = assessed(tmp_path, *specs)
    assert (found.runs, found.wanted) == (2, 3)
    (pair,) = analyse(load_sweep(tmp_path)).pairs
    assert pair.judgement.reason.startswith(
        "speedup 1.61 on 2 devices, from 2 pairs: a verdict needs 3"
    )


def test_cells_under_a_profiler_are_repeated_for_nobody(tmp_path: Path) -> None:
    """No time of theirs counts."""
    window = {"window": True}
    specs = [replace(auto(one), config={"repeats": "auto", "profile": window})
             for one in (Spec(), DDP)]  # fmt: skip
    assert assessed(tmp_path, *(one for s in specs for one in repeats(s, NOISY[:3]))) == ()


def test_runs_that_fail_are_not_repeated_for_ever(tmp_path: Path) -> None:
    lost = [replace(auto(DDP), repeat=i, outcome="failed") for i in (3, 4)]
    (found,) = assessed(
        tmp_path, *repeats(auto(Spec()), NOISY[:3]), *repeats(auto(DDP), NOISY[:3][::-1]), *lost
    )
    assert (found.wanted, found.because) == (None, "failures")
    assert "out of memory" in found.reason


@pytest.mark.parametrize(("outcome", "because"), [("skipped", "failures"), ("done", None)])
def test_one_device_is_not_repeated_for_partners_that_never_run(
    tmp_path: Path, outcome: str, because: str | None
) -> None:
    """Four devices were asked for, on a host that has two."""
    lost = [replace(auto(DDP), repeat=i, outcome=outcome) for i in range(3)]
    found = assessed(tmp_path, *repeats(auto(Spec()), NOISY[:3]), *lost)
    assert {one.because for one in found} == {because}


def test_a_fixed_number_of_repeats_is_nobodys_business(tmp_path: Path) -> None:
    assert assessed(tmp_path, *repeats(Spec(), STEADY), *repeats(DDP, STEADY)) == ()


@pytest.mark.parametrize(("runs", "wanted"), [(1, 3), (3, 4), (8, 9)])
def test_alone_it_is_looked_at_after_every_round(tmp_path: Path, runs: int, wanted: int) -> None:
    factors = [1 + 0.5 * (i % 2) for i in range(runs)]
    (found,) = assessed(tmp_path, *repeats(auto(Spec()), factors))
    assert (found.runs, found.wanted, found.figure) == (runs, wanted, "")


@pytest.mark.parametrize(
    ("factors", "because", "reason"),
    [
        ((1.0, 1.5, 0.9), "cap", "11,600 (2,470-54,300) samples/s"),
        ((1.0, 1.001, 0.999), "precision", "12,800 (12,727-12,874) samples/s"),
    ],
)
def test_alone_its_own_corrected_interval_ends_it(
    tmp_path: Path, factors: tuple[float, ...], because: str, reason: str
) -> None:
    (found,) = assessed(tmp_path, *repeats(auto(Spec(), max_repeats=3), factors))
    assert (found.because, found.reason) == (because, reason)
