"""Hosts, code and the way of timing decide who is compared with whom."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from fakes.recorded import DDP, Spec, analysed, repeats, write_sweep
from fakes.sections import lines_of
from scalewise.analysis import Comparison, analyse, compare, load_sweep
from scalewise.analysis.comparability import code_and_data_fields, differences, shared_part
from scalewise.analysis.scaling import Refused
from scalewise.host import SOURCE_SHA256
from scalewise.records import SweepFolder

FACTORS = [1.0, 1.01, 0.99, 1.005]
HERE, THERE, ELSEWHERE = "dmi-aaaaaaaaaaaa", "dmi-bbbbbbbbbbbb", "dmi-cccccccccccc"
SOURCES = "5" * 64


def on(spec: Spec, *hosts: str) -> list[Spec]:
    """Four repeats, on these hosts in turns."""
    return [
        replace(run, host=hosts[i % len(hosts)]) for i, run in enumerate(repeats(spec, FACTORS))
    ]


def fields(refused: Sequence[Refused]) -> list[str]:
    return [difference.field for one in refused for difference in one.differing]


def compared(path: Path, a: Sequence[Spec], b: Sequence[Spec], factor: str) -> Comparison:
    sweeps = [load_sweep(write_sweep(path / str(i), specs)) for i, specs in enumerate((a, b))]
    return compare(*sweeps, factor)


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
    assert len(compared(tmp_path, unknown, unknown, "code").matches) == 1, "it is declared"


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
        known = folder.load_provenance()
        told = {"commit": str(at), "diff_sha256": str(at), SOURCE_SHA256: "0" * 64}
        folder.save_provenance(replace(known, code=told))
    assert fields(analyse(load_sweep(path)).refused) == []


def test_sides_of_two_protocols_are_refused_whatever_the_factor(tmp_path: Path) -> None:
    old, new = replace(Spec(), protocol=1), Spec()
    assert fields(analysed(tmp_path / "pair", old, DDP).refused) == ["protocol"]
    assert len(analysed(tmp_path / "old", old, replace(DDP, protocol=1)).pairs) == 1
    for factor in ("code", "measuring", "gpu"):
        (unmatched,) = compared(tmp_path / factor, [old], [new], factor).unmatched
        assert [difference.field for difference in unmatched.differing] == ["protocol"]


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
