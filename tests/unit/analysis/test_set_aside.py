"""Runs whose data, code, start or neighbours differ from the others of their row."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from fakes.recorded import (
    DDP,
    DDP_MS,
    SINGLE_MS,
    STEADY,
    Spec,
    analysed,
    repeats,
    swept,
    write_sweep,
)
from fakes.sections import lines_of
from scalewise.analysis import analyse, compare, estimate, estimate_positive, load_sweep
from scalewise.analysis.comparability import code_and_data_fields, differences, shared_part
from scalewise.analysis.comparison import replaced_runs
from scalewise.analysis.scaling import Refused
from scalewise.host import SOURCE_SHA256
from scalewise.records import CellFolder, SweepFolder
from scalewise.report import results_json
from scalewise.report.answer import answers

LEFT_ALONE = "with code and data left as they are"
WAS: dict[str, Any] = {"class_files": {"mine.py": "a" * 64}}
IS: dict[str, Any] = {"class_files": {"mine.py": "b" * 64}}
OLD_DATA: dict[str, Any] = {"data": {"path": "100 bytes (sha256 a)"}}
NEW_DATA: dict[str, Any] = {"data": {"path": "200 bytes (sha256 b)"}}
OLD_COMMIT: dict[str, Any] = {"commit": "a" * 40}
NEW_COMMIT: dict[str, Any] = {"commit": "b" * 40}


def edited(specs: Sequence[Spec], *which: int, **after: Any) -> list[Spec]:
    """Those repeats, by their number, found other files; they are three times as fast."""
    return [replace(s, **after, run_factor=1 / 3) if s.repeat in which else s for s in specs]


def both_sides(was: dict[str, Any]) -> list[Spec]:
    """Three repeats on one device and three on two."""
    return [run for one in (Spec(), DDP) for run in repeats(replace(one, **was))]


@pytest.mark.parametrize(
    ("was", "now", "field"),
    [
        (WAS, IS, "code.file.mine.py"),
        (OLD_DATA, NEW_DATA, "data_file.path"),
        (OLD_COMMIT, NEW_COMMIT, "code.commit"),
    ],
)
def test_repeats_of_another_state_than_the_latest_are_set_aside(
    tmp_path: Path, was: dict[str, Any], now: dict[str, Any], field: str
) -> None:
    sides = both_sides(was)
    mixed = analyse(swept(tmp_path / "mixed", *edited(sides, 1, 2, **now)))
    alone = analyse(swept(tmp_path / "alone", *[s for s in edited(sides, 1, 2, **now) if s.repeat]))
    (pair,), (sound,) = mixed.pairs, alone.pairs
    assert (pair.speedup, pair.judgement) == (sound.speedup, sound.judgement)
    for side in (pair.single, pair.multi):
        assert [one.cell.planned.repeat for one in side.set_aside] == [0]
        assert field in side.set_aside[0].reason


def test_a_verdict_that_an_edit_keeps_open_says_so_while_it_runs_and_ends(tmp_path: Path) -> None:
    auto = {"repeats": "auto", "max_repeats": 20}
    sides = [(Spec(), [1.0, 1.3, 0.8] * 2), (DDP, [1.0, 0.7, 1.2] * 2)]
    runs = [r for one, by in sides for r in repeats(replace(one, config=auto, **WAS), by)]
    path = write_sweep(tmp_path, [replace(r, **IS) if r.repeat > 2 else r for r in runs])
    told = answers(analyse(load_sweep(path))).texts
    assert [line for line in told if "3 of 6 runs of 2 devices" in line and LEFT_ALONE in line]
    (group,) = analyse(load_sweep(path)).repeats
    assert f"6 runs set aside: one counts {LEFT_ALONE}" in group.brief


@pytest.mark.parametrize("unknown", [{"class_files": {}}, {"data": {}}])
def test_files_that_nobody_recorded_are_unknown_and_not_different(
    tmp_path: Path, unknown: dict[str, Any]
) -> None:
    sides = [replace(s, **unknown) if s.repeat == 2 else s for s in both_sides({**WAS, **OLD_DATA})]
    (pair,) = analyse(swept(tmp_path / "mixed", *sides)).pairs
    assert (pair.speedup.n, pair.remarks) == ((3, 3), ())
    older = swept(tmp_path / "older", Spec(**unknown))
    assert len(compare(swept(tmp_path / "new", Spec(**WAS)), older, "gpu").matches) == 1


def test_a_comparison_of_sweeps_says_which_repeats_it_leaves_out(tmp_path: Path) -> None:
    a = swept(tmp_path / "a", *edited(both_sides(WAS), 1, 2, **IS))
    found = compare(a, swept(tmp_path / "b", *both_sides(IS)), "dataset")
    assert [match.ratio.n for match in found.matches] == [(3, 2), (3, 2)]
    left_out = [(one.side, one.cell) for one in found.left_out]
    assert left_out == [("A", "000-large-single-r0"), ("A", "003-large-ddp-r0")]


@pytest.mark.parametrize(
    ("was", "now", "factor", "field"),
    [(WAS, IS, "code", "code.file.mine.py"), (OLD_DATA, NEW_DATA, "dataset", "data_file.path")],
)
def test_sweeps_of_different_files_are_compared_only_under_that_factor(
    tmp_path: Path, was: dict[str, Any], now: dict[str, Any], factor: str, field: str
) -> None:
    a, b = swept(tmp_path / "a", Spec(**was)), swept(tmp_path / "b", Spec(**now))
    (refused,) = compare(a, b, "gpu").unmatched
    assert [one.field for one in refused.differing] == [field]
    assert len(compare(a, b, factor).matches) == 1


# Repeats with neighbours on the host: set aside one by one, and never mixed with the others.
IDEAL = sum(SINGLE_MS.values()) / sum(DDP_MS.values())


def with_neighbours(specs: list[Spec], *which: int) -> list[Spec]:
    """Those runs meet a neighbour that makes them five times slower."""
    return [
        replace(s, co_tenants=("pid 4711 (python)",), run_factor=5.0) if i in which else s
        for i, s in enumerate(specs)
    ]


def test_a_run_far_out_is_doubted_with_the_figure_without_it(tmp_path: Path) -> None:
    found = analysed(tmp_path, *repeats(Spec(), [*STEADY, *STEADY, 3.0]))
    rates = found.measured[0].values("global_samples_per_s")
    whole, without = (estimate(estimate_positive(each)) for each in (rates, rates[:-1]))
    (doubt,) = [one for one in found.remarks if one.code == "outliers"]
    assert doubt.figures == {"count": 1, "runs": 11, "whole": whole, "without": without}


def test_one_repeat_with_a_neighbour_is_set_aside_and_others_are_compared(tmp_path: Path) -> None:
    found = analysed(tmp_path, *repeats(Spec(), STEADY), *with_neighbours(repeats(DDP, STEADY), 3))
    (pair,) = found.pairs
    assert (found.refused, (pair.speedup.n, pair.verdict)) == ((), ((4, 4), "pays"))
    assert abs(pair.speedup.value / IDEAL - 1) < 0.01
    assert (len(pair.multi.runs), len(pair.multi.set_aside)) == (4, 1)
    (line,) = [one for one in found.remarks if one.code == "set_aside"]
    assert line.about == pair.multi.config_id
    assert line.figures == {
        "count": 1, "repeats": 5,
        "reasons": "008-large-ddp-r3 shared the host with pid 4711 (python)",
    }  # fmt: skip
    assert '"reason": "shared the host with pid 4711 (python)"' in results_json(found)


def test_too_few_repeats_left_are_no_comparison(tmp_path: Path) -> None:
    specs = with_neighbours(repeats(DDP, STEADY[:2]), 1)
    found = analysed(tmp_path, *repeats(Spec(), STEADY), *specs)
    (refused,) = found.refused
    assert found.pairs == ()
    assert refused.reason.startswith("1 of your 2 runs was disturbed: run 2 more on a quiet host")
    assert "shared the host with pid 4711" in refused.reason


def test_where_all_shared_the_host_a_run_that_had_it_alone_is_the_odd_one(tmp_path: Path) -> None:
    single = with_neighbours(repeats(Spec(), STEADY), 0, 1, 2, 3)
    multi = with_neighbours(repeats(DDP, STEADY), 0, 1, 2, 3, 4)
    (pair,) = analysed(tmp_path, *single, *multi).pairs
    assert pair.speedup.n == (4, 4)
    assert [one.reason for one in pair.single.set_aside] == [
        "had the host alone, unlike the repeats that are compared"
    ]


def test_what_makes_runs_useless_and_stays_does_not_add_repeats_for_ever(tmp_path: Path) -> None:
    auto = {"repeats": "auto", "max_repeats": 8, "precision_percent": 2}
    runs = repeats(replace(DDP, config=auto), [1.0, 1.3] * 4)
    alone = write_sweep(tmp_path / "alone", with_neighbours(runs, *range(3, 8)))
    moved = write_sweep(
        tmp_path / "moved", [*runs[:5], *(replace(s, device_name="NVIDIA L4") for s in runs[5:])]
    )
    aside, elsewhere = (analyse(load_sweep(path)).repeats[0] for path in (alone, moved))
    assert (aside.wanted, aside.because) == (elsewhere.wanted, elsewhere.because) == (None, "cap")
    assert "5 runs of large ddp x2 are set aside: run it again on a quiet host" in aside.reason
    assert "3 runs of large ddp x2" in elsewhere.reason


# Runs that were forked and runs that were started freshly: never in one mean, nor in one pair.
@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        ({"started": "fresh", "not_forked": "2 threads run"},
         "was fresh, and others were forked (2 threads run)"),
        ({"started": "forked"}, "was forked, and others were fresh"),
    ],
)  # fmt: skip
def test_the_fewer_starts_are_set_aside(tmp_path: Path, odd: dict[str, str], reason: str) -> None:
    other = "fresh" if odd["started"] == "forked" else "forked"
    specs = [replace(spec, started=other) for spec in repeats(DDP, STEADY)]
    specs[2] = replace(specs[2], run_factor=3.0, **odd)
    singles = [replace(spec, started=other) for spec in repeats(Spec(), STEADY)]
    (pair,) = analysed(tmp_path, *singles, *specs).pairs
    assert [aside.reason for aside in pair.multi.set_aside] == [reason]
    assert len(pair.multi.runs) == 4


# A finished run that was run again is said beside the figures that its successor is in.


def run_again(folder: CellFolder, times: int = 1) -> None:
    """As the sweep does it: the result goes to ``earlier``, and a new try leaves the same files."""
    for _ in range(times):
        kept = folder.set_aside()
        for name in ("result.json", "config.yaml", "provenance.json"):
            (folder.path / name).write_bytes((kept / name).read_bytes())


def test_replaced_runs_are_counted_and_named_in_the_doubts_of_the_report(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, both_sides({}))
    assert replaced_runs(load_sweep(path)) == []
    first, second, third, *others = (folder for _, folder in SweepFolder(path).cells())
    run_again(first)
    (line,) = replaced_runs(load_sweep(path))
    assert line.startswith("1 run whose") and f": {first.name}; " in line
    run_again(second, times=2)
    (line,) = replaced_runs(load_sweep(path))
    assert f": {first.name}, {second.name} (2 times); " in line
    assert f"doubt: {line}" in lines_of(path, "remarks")
    third.set_aside()
    for more in others:
        run_again(more)
    (line,) = replaced_runs(load_sweep(path))
    assert line.startswith("6 runs whose results") and third.name in line


# Hosts, code and the way of timing decide who is compared with whom.
FACTORS = [1.0, 1.01, 0.99, 1.005]
HERE, THERE, ELSEWHERE = "dmi-aaaaaaaaaaaa", "dmi-bbbbbbbbbbbb", "dmi-cccccccccccc"
SOURCES = "5" * 64


def on(spec: Spec, *hosts: str) -> list[Spec]:
    """Four repeats, on these hosts in turns."""
    return [replace(r, host=hosts[i % len(hosts)]) for i, r in enumerate(repeats(spec, FACTORS))]


def fields(refused: Sequence[Refused]) -> list[str]:
    return [difference.field for one in refused for difference in one.differing]


@pytest.mark.parametrize(
    ("single", "multi", "refused"),
    [
        ((HERE,), (THERE,), ["host"]),
        ((HERE,), (HERE, THERE), ["host"]),
        ((HERE, THERE), (HERE, ELSEWHERE), ["host"]),
        (("0123456789ab",), (HERE,), ["host"]),
        (("",), ("",), ["host"]),  # nobody recorded it
        ((HERE,), (HERE,), []),
        ((HERE, THERE), (THERE, HERE), []),
    ],
)
def test_runs_are_compared_with_those_on_the_same_hosts(
    tmp_path: Path, single: tuple[str, ...], multi: tuple[str, ...], refused: list[str]
) -> None:
    found = analysed(tmp_path, *on(Spec(), *single), *on(DDP, *multi))
    assert fields(found.refused) == refused
    assert [pair.speedup.n for pair in found.pairs] == [(4, 4)] * (not refused)


def test_unknown_code_does_not_equal_unknown_code(tmp_path: Path) -> None:
    unknown = repeats(replace(Spec(), commit=None), FACTORS)
    multi = repeats(replace(DDP, commit=None), FACTORS)
    assert fields(analysed(tmp_path / "both", *unknown, *multi).refused) == ["code.commit"]
    # Nor does a mixture with it, which is spelt alike on both sides.
    mixed = [*unknown[:2], *repeats(Spec(), FACTORS)[2:], *multi[:2], *repeats(DDP, FACTORS)[2:]]
    assert fields(analysed(tmp_path / "mixed", *mixed).refused) == ["code.commit"]
    alone = swept(tmp_path / "alone", *unknown)
    assert len(compare(alone, alone, "code").matches) == 1, "it is declared"


def test_without_a_commit_the_sources_tell_the_code(tmp_path: Path) -> None:
    single, multi = (replace(s, commit=None, source_sha256=SOURCES) for s in (Spec(), DDP))
    assert len(analysed(tmp_path / "same", single, multi).pairs) == 1
    other = analysed(tmp_path / "other", single, replace(multi, source_sha256="6" * 64))
    assert fields(other.refused) == ["code.source"]
    committed = analysed(tmp_path / "committed", single, DDP)
    assert fields(committed.refused) == ["code.commit", "code.source"]
    # That nothing was changed on top of a commit is only known of one.
    for found, is_known in (
        (analysed(tmp_path / "unknown", Spec(commit=None)), False),
        (committed, True),
    ):
        known = code_and_data_fields(found.configurations[-1].cells[0])
        assert ("code.commit" in known) is ("none" in known.values()) is is_known


def test_a_commit_beside_the_hash_of_the_sources_sets_nothing_aside(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, [Spec(), DDP])
    for at, (_, folder) in enumerate(SweepFolder(path).cells()):
        told = {"commit": str(at), "diff_sha256": str(at), SOURCE_SHA256: "0" * 64}
        folder.save_provenance(replace(folder.load_provenance(), code=told))
    assert fields(analyse(load_sweep(path)).refused) == []


def test_sides_of_two_protocols_are_refused_whatever_the_factor(tmp_path: Path) -> None:
    old, new = replace(Spec(), protocol=1), Spec()
    assert fields(analysed(tmp_path / "pair", old, DDP).refused) == ["protocol"]
    assert len(analysed(tmp_path / "old", old, replace(DDP, protocol=1)).pairs) == 1
    sides = swept(tmp_path / "a", old), swept(tmp_path / "b", new)
    for factor in ("code", "measuring", "gpu"):
        assert fields(compare(*sides, factor).unmatched) == ["protocol"]


def test_gpus_are_counted_and_not_compared(tmp_path: Path) -> None:
    moved = [replace(run, first_gpu=2 * (run.repeat % 2)) for run in repeats(DDP, FACTORS)]
    found = analysed(tmp_path, *repeats(Spec(), FACTORS), *moved)
    assert len(found.pairs) == 1
    assert "GPUs by UUID: 4 in all" in lines_of(found, "provenance")


def test_identities_without_differences_share_what_thousands_are_told_apart_by() -> None:
    """Values of a few fields at random, some of them freed, excused or absent."""
    names = ("precision", "strategy", "batch", "data_file.path", "code.commit", "model.new", "host")
    random, alike = Random(0), 0
    for factor in ("devices", "code", "precision,batch", "gpu"):
        for _ in range(3000):
            one, other = (
                {n: random.choice("aab") for n in names if random.random() < 0.8} for _ in range(2)
            )
            if not differences(one, other, factor, ("strategy",)):
                alike += 1
                parts = (shared_part(each, factor, ("strategy",)) for each in (one, other))
                assert len(set(parts)) == 1
    assert alike > 100
