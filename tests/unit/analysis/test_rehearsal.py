"""What is said of a rehearsal: beside its single device, and never as a verdict of runs."""

import json
import math
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import geometric_mean

import numpy as np
import pytest
import scipy

from fakes.recorded import DDP, SINGLE_MS, STEADY_3, Spec, edit_ranks, repeats, write_sweep
from scalewise import analysis
from scalewise.analysis import Share, analyse, cases, compare, load_sweep, scores, step_parts
from scalewise.analysis.rehearsal import LINKED_AT_CAP, STEP_ERRORS, Regime, regime
from scalewise.analysis.step_figures import figures_of
from scalewise.report import build
from scalewise.report.advice import advise
from scalewise.report.page import page_data
from scalewise.report.sections import markdown
from scalewise.report.study_tables import rehearsals_in_brief, rehearsed

SINGLE = Spec()
REAL = replace(DDP, devices=4, config={"strategy": {"name": "ddp", "kind": "ddp"}})
LINK = {"name": "pcie", "ranks": 2, "points": [[1, 0.1], [2**30, 10.0]], "source": "a doctor"}
SHARED = {**LINK, "points": [[1, 0.1], [2**30, 40.0]]}
FASTER = {**SINGLE_MS, "forward": 1.2, "backward": 2.8, "data_wait": 0.0, "other": 0.3}


@pytest.fixture(autouse=True)
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every GPU has a kernel all the time, as its samples would say."""
    monkeypatch.setattr(step_parts, "_activity", lambda usage: dict.fromkeys(range(8), 1.0))


def rehearsal(ranks: int = 4, link: object = LINK, **changes: object) -> Spec:
    """One rank of ``ranks``, in twice the time of its share of the batch."""
    strategy = {"name": "ddp_rehearsed", "kind": "rehearsal", "ranks": ranks, "link": link}
    plain = {"strategy": strategy, "batch_size": 128}
    spec = replace(SINGLE, batch_size=128 // ranks, phases_ms=FASTER, config=plain)
    return replace(spec, strategy="ddp_rehearsed", **changes)  # type: ignore[arg-type]


def auto(ranks: int) -> tuple[Spec, Spec]:
    """One device and a rehearsal, of as many runs as it takes."""
    play, asked = rehearsal(ranks), {"repeats": "auto"}
    return replace(SINGLE, config=asked), replace(play, config={**play.config, **asked})


def played(path: Path, *specs: Spec, ranks: int = 4) -> analysis.Analysis:
    write_sweep(path, specs)
    record = {"ranks": ranks, "link": "pcie", "source": "a doctor"}
    edit_ranks(path, lambda one: one.update(rehearsed=record), "*ddp_rehearsed*")
    return analyse(load_sweep(path))


def test_it_is_held_against_one_device_and_called_likely(tmp_path: Path) -> None:
    found = played(tmp_path, *repeats(SINGLE), *repeats(rehearsal()))
    (one,) = found.rehearsals
    step_ms = sum(FASTER.values()) / sum(SINGLE_MS.values())
    assert (one.speedup.value, one.word) == (pytest.approx(1 / step_ms, rel=0.01), "cannot tell")
    assert (found.pairs, found.refused) == ((), ())
    assert [c.label for c in found.measured] == ["large single x1"]
    assert one.config.label == "large ddp x4, rehearsed over pcie"


@pytest.mark.parametrize(("each", "times"), [(128, 4), (32, 1)])
def test_a_script_divides_its_batch_by_ranks_or_not(tmp_path: Path, each: int, times: int) -> None:
    """Which of both it does shows beside one device, as of ranks that are there."""
    script = {"script": {"command": "python s.py"}, "batch_size": 1}
    single = replace(SINGLE, scaling="weak", config=script)
    play = rehearsal(scaling="weak")
    play = replace(play, batch_size=each, config={**play.config, **script})
    (one,) = played(tmp_path, *repeats(single), *repeats(play)).rehearsals
    step = sum(FASTER.values()) / sum(SINGLE_MS.values())
    assert one.speedup.value == pytest.approx(times / step, rel=0.01)


def test_what_keeps_a_script_from_a_single_device_is_not_its_divided_batch(tmp_path: Path) -> None:
    script = {"script": {"command": "python s.py"}, "batch_size": 1}
    play = rehearsal(scaling="weak", co_tenants=("make",))
    play = replace(play, config={**play.config, **script})
    single = replace(SINGLE, scaling="weak", config=script)
    (one,) = played(tmp_path, *repeats(single), *repeats(play)).rehearsals
    assert (one.single, one.word) == (None, "cannot tell")
    assert "other cells on the host" in one.reason


@pytest.mark.parametrize(
    ("busy", "delay_ms", "wait_ms", "limit"),
    [
        (0.883, 0.0, 0.0, "GPU"), (0.883, 0.5, 0.0, "host"),
        (1.0, 0.0, 0.09, "GPU"), (1.0, 0.0, 0.12, "host"),  # of 5.0 ms
    ],
)  # fmt: skip
def test_a_gpu_whose_host_waits_for_a_core_or_a_batch_is_limited_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, busy: float, delay_ms: float, wait_ms: float,
    limit: Regime,
) -> None:  # fmt: skip
    monkeypatch.setattr(step_parts, "_activity", lambda usage: dict.fromkeys(range(8), busy))
    late = replace(rehearsal(), phases_ms={**FASTER, "data_wait": wait_ms})
    played(tmp_path, *repeats(SINGLE), *repeats(late))
    edit_ranks(tmp_path, lambda one: one.update(run_queue_ms_per_step=delay_ms), "*ddp_rehearsed*")
    (one,) = analyse(load_sweep(tmp_path)).rehearsals
    assert regime(one.config) == limit


@pytest.mark.parametrize(
    ("wait_ms", "in_a_row", "link", "capped", "longer"),
    [
        (0.0, 1, LINK, 0.49, 1.0), (0.5, 32, LINK, 0.5, 1.0), (0.0, 1, LINK, 0.5, LINKED_AT_CAP),
        (0.0, 1, SHARED, 1.0, 1.0), (0.0, 1, {"name": "unknown"}, 1.0, 1.0),
        (0.0, 1, LINK, None, 1.0),
    ],
)  # fmt: skip
def test_gpus_wait_for_the_slowest_and_hosts_catch_up_and_nvlink_takes_power(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait_ms: float, in_a_row: int, link: object,
    capped: float | None, longer: float,
) -> None:  # fmt: skip
    monkeypatch.setattr(
        analysis.Configuration, "mean_of_devices", {"power_capped_share": capped}.get
    )
    play = replace(rehearsal(2, link), phases_ms={**FASTER, "data_wait": wait_ms})
    (one,) = played(tmp_path, *repeats(SINGLE), *repeats(play), ranks=2).rehearsals
    late = []
    for run in one.config.runs:
        steps_ms = run.cell.steps[0].timed().column("step")
        draws_ms = np.mean([np.roll(steps_ms, -each) for each in range(in_a_row)], axis=0)
        late.append(np.mean([*map(max, product(draws_ms, repeat=2))]) / steps_ms.mean())
    assert min(late) > 1.0001
    assert one.lateness == pytest.approx(geometric_mean(late) * longer)
    own, single = (c.estimate("step_time_ms").value for c in (one.config, one.single))
    assert one.step_time_ms.value == pytest.approx(own * one.lateness)
    assert one.speedup.value == pytest.approx(single / one.step_time_ms.value)


def test_a_run_that_was_not_timed_says_nothing_of_the_slowest(tmp_path: Path) -> None:
    (whole,) = played(tmp_path, *repeats(SINGLE), *repeats(rehearsal())).rehearsals
    gone, *kept = whole.config.runs
    (gone.cell.path / "steps/rank0.bin").unlink()
    (one,) = analyse(load_sweep(tmp_path)).rehearsals
    late = geometric_mean(figures_of(run.cell).lateness for run in kept)
    assert one.lateness == pytest.approx(late, rel=1e-6) != whole.lateness
    for run in kept:
        (run.cell.path / "steps/rank0.bin").unlink()
    (one,) = analyse(load_sweep(tmp_path)).rehearsals
    assert (one.lateness, one.word) == (1.0, "cannot tell")


@pytest.mark.parametrize(
    ("ranks", "speed", "link", "word"),
    [
        (2, 1.0, SHARED, "likely pays"), (4, 1.2, LINK, "likely pays"),
        (8, 1.0, LINK, "likely does not pay"),
        # Ranks that share a link get more of it the fewer they are.
        (4, 1.2, SHARED, "cannot tell"), (8, 1.0, SHARED, "likely does not pay"),
        (4, 1.2, {**SHARED, "ranks": 8}, "likely pays"),
        (8, 1.0, {**SHARED, "ranks": 9}, "cannot tell"),
        (4, 1.2, {**SHARED, "name": "custom"}, "likely pays"),
    ],
)  # fmt: skip
def test_the_whole_interval_decides(
    tmp_path: Path, ranks: int, speed: float, link: dict[str, object], word: str
) -> None:
    phases = {phase: ms / speed for phase, ms in FASTER.items()}
    play = replace(rehearsal(ranks, link), phases_ms=phases)
    found = played(tmp_path, *repeats(SINGLE), *repeats(play), ranks=ranks)
    assert [one.word for one in found.rehearsals] == [word]
    assert found.rehearsals[0].config not in found.configurations


@pytest.mark.parametrize(("busy", "limit"), [(1.0, "GPU"), (0.883, "GPU"), (0.877, "host")])
def test_the_interval_is_as_wide_as_the_score_however_steady_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, busy: float, limit: Regime
) -> None:
    monkeypatch.setattr(step_parts, "_activity", lambda usage: dict.fromkeys(range(8), busy))
    both = (*repeats(SINGLE, [1.0] * 3), *repeats(rehearsal(2), [1.0] * 3))
    (one,) = played(tmp_path, *both, ranks=2).rehearsals
    assert (regime(one.config), one.word) == (limit, "likely pays")
    wide = one.speedup.interval.high / one.speedup.value - 1
    assert wide == pytest.approx({"GPU": 0.035, "host": 0.12}[limit])


def test_looks_at_every_round_are_paid_for_as_those_of_pairs_are(tmp_path: Path) -> None:
    (one,) = played(tmp_path, *(each for spec in auto(4) for each in repeats(spec))).rehearsals
    runs = scipy.stats.t.ppf(0.99, one.speedup.df) * one.speedup.log_error
    half = math.log(one.speedup.interval.high / one.speedup.value)
    assert half == pytest.approx(math.hypot(runs, math.log1p(STEP_ERRORS["GPU"])))


@pytest.mark.parametrize(
    ("ranks", "factors", "because", "wanted"),
    [
        (2, STEADY_3, "verdict", None),  # likely pays
        (4, [1.0, 1.0001, 1.0], "precision", None),  # its edge is in the interval of the score
        (4, [1.0, 1.1, 0.9], None, 4),
        (2, STEADY_3[:2], None, 3),
    ],
)
def test_rounds_with_its_single_device_are_added_until_no_more_would_tell(
    tmp_path: Path, ranks: int, factors: list[float], because: str | None, wanted: int | None
) -> None:
    one, play = auto(ranks)
    specs = [*repeats(one, [1.0] * len(factors)), *repeats(play, factors)]
    (group,) = played(tmp_path, *specs, ranks=ranks).repeats
    assert [member.devices for member in group.members] == [1, 1]
    assert (group.runs, group.because, group.wanted) == (len(factors), because, wanted)
    alone = played(tmp_path / "alone", *repeats(play, factors), ranks=ranks)
    assert alone.repeats == (), "its single device has not run"
    on_cpus = [replace(spec, kind="cpu") for spec in specs]
    (group,) = played(tmp_path / "cpu", *on_cpus, ranks=ranks).repeats
    assert group.because == ("untold" if len(factors) == 3 else None)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_no_rounds_are_added_where_nothing_will_be_told(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_parts, "_activity", lambda usage: {})
    specs = [*repeats(auto(2)[0], [1.0] * 3), *repeats(auto(2)[1], [1.0, 1.2, 0.8])]
    found = played(tmp_path, *(replace(s, kind=kind) for s in specs), ranks=2)
    (group,), (one,) = found.repeats, found.rehearsals
    assert (group.wanted, one.word) == (None, "cannot tell")
    assert regime(one.config) == {"cpu": "CPU", "cuda": "unknown"}[kind]
    texts = str(one), group.figure, markdown("", [rehearsed(found), *advise(found, None)])
    shows = [f"{one.speedup.value:.2f}" in text for text in texts]
    assert [*shows, len(page_data(found)["rehearsals"])] == [kind == "cuda"] * 4, "of CPUs: none"


@pytest.mark.parametrize(
    ("by", "known"),
    [
        ((0.5, 2.0, 3.0), "likely does not pay up to 1 M; likely pays from 100 M parameters on"),
        ((0.5, 3.0, 3.0), "likely does not pay up to 1 M; likely pays from 10 M parameters on"),
        ((3.0, 3.0, 3.0), "likely pays at every size, from 1 M parameters on"),
        ((3.0, 2.0, 2.0), "cannot tell from which of 3 sizes on it pays"),
    ],
)
def test_sizes_of_one_model_say_from_which_on_devices_likely_pay(
    tmp_path: Path, by: tuple[float, ...], known: str
) -> None:
    specs = []
    for i, faster in enumerate(by):
        own = {"model": {"name": f"s{i}", "_target_": "my.Net", "size": i}}
        each = {name: ms / faster for name, ms in SINGLE_MS.items()}
        play = rehearsal(model=f"s{i}")
        play = replace(play, phases_ms=each, config={**play.config, **own})
        specs += [*repeats(replace(SINGLE, model=f"s{i}", config=own)), *repeats(play)]
    played(tmp_path, *specs)
    for i in range(len(by)):
        edit_ranks(tmp_path, partial(dict.update, parameters_total=10 ** (6 + i)), f"*-s{i}-*")
    found = analyse(load_sweep(tmp_path))
    said = [line for line in rehearsals_in_brief(found) if line.startswith("Net ")]
    assert said == [f"Net ddp x4 over pcie, 32 samples a rank: {known}."]


@pytest.mark.parametrize(
    ("specs", "reason"),
    [
        (repeats(rehearsal()), "no single-device cell"),
        ([*repeats(replace(SINGLE, batch_size=64)), *repeats(rehearsal())],
         "differs in batch: 64 against 128"),
        # Only a script may divide its batch.
        ([*repeats(SINGLE), *repeats(rehearsal(scaling="weak"))], "scaling: strong against weak"),
        ([*repeats(SINGLE), *repeats(rehearsal())[:2]], "2 of 3 runs"),
        ([*repeats(SINGLE), *repeats(rehearsal(link=None))], "strategy.link"),
        ([*repeats(replace(SINGLE, kind="cpu")), *repeats(rehearsal(kind="cpu"))], "on CPUs"),
    ],
)  # fmt: skip
def test_what_cannot_be_told_says_why(tmp_path: Path, specs: list[Spec], reason: str) -> None:
    (one,) = played(tmp_path, *specs).rehearsals
    assert one.word == "cannot tell"
    assert reason in one.reason


def divided(kind: str, **strategy: object) -> Spec:
    """FSDP on four devices that were there, or rehearsed."""
    plays = {"ranks": 4, "link": LINK} if kind != "fsdp" else {}
    own = {"name": kind, "kind": kind, "sharding": "full", **plays, **strategy}
    spec = rehearsal() if plays else REAL
    name = "ddp_rehearsed" if plays else "fsdp"
    return replace(spec, strategy=name, config={**spec.config, "strategy": own})


def test_fsdp_is_held_against_fsdp_of_its_own_kind_with_the_larger_error(tmp_path: Path) -> None:
    specs = SINGLE, REAL, divided("fsdp", sharding="grad_op"), divided("fsdp_rehearsal")
    (one,) = played(tmp_path / "a", *(each for spec in specs for each in repeats(spec))).rehearsals
    assert one.config.label == "large fsdp x4, rehearsed over pcie"
    assert (one.measured, one.step_error) == (None, None)
    low, high = one.speedup.interval.low, one.speedup.interval.high
    assert math.log(high / low) / 2 == pytest.approx(math.log1p(STEP_ERRORS["host"]), rel=0.02)
    specs = SINGLE, divided("fsdp"), divided("fsdp_rehearsal"), REAL, rehearsal()
    found = played(tmp_path / "b", *(each for spec in specs for each in repeats(spec)))
    each = cases([("b", found)])
    assert {case.measured.setting("strategy.kind") for case in each} == {"ddp", "fsdp"}
    kinds = {score.kind.partition(",")[0]: score.cases for score in scores(each)}
    assert kinds == {"large": 1, "large fsdp": 1, "all": 1, "all fsdp": 1}


def test_the_report_marks_it_and_keeps_it_out_of_the_figures(tmp_path: Path) -> None:
    found = played(tmp_path, *repeats(SINGLE), *repeats(rehearsal(2)), ranks=2)
    assert cases([("a", found)]) == [], "nothing was measured on two"
    build(analyse(load_sweep(tmp_path)), tmp_path / "out")
    names = ("report.md", "details.md", "results.json", "results.csv")
    page, details, plain, rows = ((tmp_path / "out" / name).read_text() for name in names)
    (one,) = found.rehearsals
    assert f"large ddp x2, rehearsed over pcie: {one.speedup.value:.2f}x (90 % int" in page
    assert "Rehearsed, not measured" in details
    assert "Nothing ran on several devices: they were rehearsed." in page
    (told,) = json.loads(plain)["rehearsals"]
    assert (told["ranks"], told["verdict"]) == (2, "likely pays")
    assert "rehearsed" not in details[details.index("## Scaling") :].split("\n## ")[0]
    assert "rehearsed" not in rows


@pytest.mark.parametrize(("ranks", "batch", "verdict"), [(4, 32, "does not pay"), (3, 42, "pays")])
def test_its_errors_stand_beside_those_of_what_needs_no_rehearsal(
    tmp_path: Path, ranks: int, batch: int, verdict: str
) -> None:
    whole = {"batch_size": batch * ranks}
    few = {**SINGLE_MS, "forward": 0.5, "backward": 1.0}
    specs = [
        replace(SINGLE, **whole), replace(SINGLE, batch_size=batch, phases_ms=few),
        replace(REAL, devices=2, **whole), replace(REAL, devices=ranks, **whole), rehearsal(ranks),
    ]  # fmt: skip
    runs = [each for spec in specs for each in repeats(spec)]
    (case,) = cases([("a", played(tmp_path, *runs, ranks=ranks))])
    one, real, play, small = (sum(ms.values()) for ms in (SINGLE_MS, DDP.phases_ms, FASTER, few))
    play *= case.rehearsal.lateness
    serial = (real / one - 1 / 2) / (1 - 1 / 2)  # two devices take as long as all
    expected = {
        "step": play / real - 1,
        "surplus": (play - one / ranks) / (real - one / ranks) - 1,
        "linear": one / ranks / real - 1,
        "alone": small / real - 1,
        "amdahl": one * (serial + (1 - serial) / ranks) / real - 1,
    }
    assert {key: getattr(case, key) for key in expected} == pytest.approx(expected, rel=0.02)
    assert (case.regime, case.covered) == ("GPU", False)
    unsure = replace(case, rehearsal=replace(case.rehearsal, word="cannot tell"))
    (score,) = scores([unsure, unsure])
    assert (score.cases, score.models, score.hosts) == (2, 1, 1)
    assert score.worst == score.middle("step") == abs(case.step)
    assert (score.covered, score.covered.interval) == (Share(0, 2), None)
    assert score.told == Share(0, 0)
    said = replace(case, rehearsal=replace(case.rehearsal, word=f"likely {case.verdict}"))
    (score,) = scores([unsure, said, replace(said, verdict="undecided")])
    assert (case.verdict, score.told) == (verdict, Share(1, 2))


def test_a_surplus_that_may_be_none_has_no_error(tmp_path: Path) -> None:
    linear = replace(REAL, phases_ms={name: ms / 4 for name, ms in SINGLE_MS.items()})
    specs = [each for spec in (SINGLE, linear, rehearsal()) for each in repeats(spec)]
    (case,) = cases([("a", played(tmp_path, *specs))])
    assert case.linear == pytest.approx(0.0, abs=0.01)
    assert (case.surplus, case.alone, case.amdahl) == (None, None, None)


def test_shares_have_wilsons_interval_from_a_handful_on() -> None:
    found = Share(9, 10).interval  # Wilson, 1927: (p + z²/2n ± z sqrt(pq/n + z²/4n²)) / (1 + z²/n)
    assert (found.low, found.high) == pytest.approx((0.5958, 0.9821), abs=1e-4)


@pytest.mark.parametrize("factor", [None, "devices", "strategy", "devices,strategy,code,link"])
def test_it_is_compared_with_no_measured_one(tmp_path: Path, factor: str | None) -> None:
    """Not even with that on as many devices, and not by any factor."""
    played(tmp_path / "a", *repeats(rehearsal()))
    write_sweep(tmp_path / "b", repeats(REAL))
    sweeps = (load_sweep(tmp_path / "a"), load_sweep(tmp_path / "b"))
    for one, other in (sweeps, sweeps[::-1]):
        found = compare(one, other, factor)
        assert not found.matches
        assert any("rehearsed" in lone.reason for lone in found.unmatched) or factor is None


def test_the_page_draws_it_apart_from_what_was_measured(tmp_path: Path) -> None:
    data = page_data(played(tmp_path, *repeats(SINGLE), *repeats(rehearsal()), *repeats(REAL)))
    (one,) = data["rehearsals"]
    assert (one["devices"], one["model"]) == (4, "large")
    assert one["speedup"]["low"] < one["speedup"]["value"] < one["speedup"]["high"]
    labels = {c["configuration"] for c in data["configurations"]}
    assert labels == {"large single x1", "large ddp x4"}
    assert not any("rehearsed" in cell["name"] for cell in data["cells"])
