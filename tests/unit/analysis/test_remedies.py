"""What is to be tried against a loss: typed as keys that exist, by what was measured.

Beside it stands what else holds of every kept sweep: each is analysed once for all of it.
"""

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Literal, get_args

import pytest
from hydra.errors import MissingConfigException

from fakes.kept_sweep import NAMES, analysis_of, kept, kept_sweeps
from fakes.recorded import DDP, Spec, analysed, edit_ranks, with_devices, write_sweep
from fakes.requests import asked, composer, read
from fakes.sections import lines_of
from fakes.train_command import copy_own_code
from scalewise.analysis import CAUSE_WORDS, OWN_BATCHES, Configuration, analyse, load_sweep
from scalewise.analysis.disturbances import disturbances
from scalewise.analysis.loss_budget import LossCause, LostTime
from scalewise.analysis.remedies import remedy, work_remedy
from scalewise.analysis.steps import Anatomy, RankAnatomy
from scalewise.config import ConfigError
from scalewise.records import PHASES, SweepFolder
from scalewise.report.findings import command as whole
from scalewise.sweep.preflight import check_own_code

STALLED = sorted((Path(__file__).parents[2] / "golden" / "stalled").glob("h*"))


def configuration(path: Path, **config: object) -> Configuration:
    (found,) = analysed(path, Spec(config=config)).measured
    return found


FOR_KEY = {
    "strategy.compression": "strategy=ddp", "strategy.no_sync": "strategy=ddp",
    "strategy.microbatches": "strategy=pipeline", "profile.trace": "profile.window=true",
}  # fmt: skip
"""What a key needs beside it."""


def compose_typed(text: str) -> list[str]:
    """Every key and ``key=value`` in a remedy. Raises where hydra knows no such key or option."""
    keys = re.findall(r"\b[a-z]+(?:[._][a-z]+)+\b(?:=[\w\-]+)?|\b[a-z]+=[\w\-]+", text)
    for typed in keys:
        key, _, value = typed.partition("=")
        overrides = [FOR_KEY[key]] if key in FOR_KEY else []
        overrides += [typed] if value else []
        plain = composer().plain(overrides, 0)
        for name in key.split("."):
            assert name in plain, typed
            plain = plain[name]
    return keys


_IN_WORDS = ("callbacks", "contention", "long_steps", "clocks")
"""Causes against which there is nothing to type."""


@pytest.mark.parametrize("cause", sorted({*get_args(LossCause)} - {"untimed"}))
def test_every_cause_has_a_remedy_whose_keys_exist(tmp_path: Path, cause: LossCause) -> None:
    assert cause in CAUSE_WORDS
    config = configuration(tmp_path)
    for rank in (None, 1):
        found = remedy(config, LostTime(cause, 1.0, 0.2, "", rank))
        assert compose_typed(found.words) or cause in _IN_WORDS
        assert found.overrides or found.deed
        for override in found.overrides:
            assert compose_typed(override) == [override]


def test_a_rank_that_is_waited_for_has_no_device_to_leave_out_on_cpus(tmp_path: Path) -> None:
    for kind in ("cuda", "cpu"):
        (config,) = analysed(tmp_path / kind, Spec(kind=kind)).measured
        found = remedy(config, LostTime("waiting", 1.0, 0.2, "", 1))
        assert ("hardware.gpus" in found.words + found.deed) is (kind == "cuda")


def test_nobody_knows_what_a_script_does_and_steps_by_hand_add_nothing_up(tmp_path: Path) -> None:
    by_hand = configuration(tmp_path / "module", model={"_target_": "mine.Gan"})
    assert not remedy(by_hand, LostTime("optimizer", 1.0, 0.2, "")).overrides
    edit_ranks(tmp_path / "module", lambda rank: rank.update(steps_without_loss=0))
    (automatic,) = analyse(load_sweep(tmp_path / "module")).measured
    assert remedy(automatic, LostTime("optimizer", 1.0, 0.2, "")).overrides
    config = configuration(tmp_path / "script", script={"command": "python mine.py"})
    lost = LostTime("between_steps", 1.0, 0.2, "", by_script=True)
    assert (remedy(config, lost).words, lost.words()) == ("", "the script's own work")


def test_a_late_host_is_first_taken_out_of_the_step(tmp_path: Path) -> None:
    found = remedy(configuration(tmp_path), LostTime("host_late", 1.0, 0.2, "", None))
    assert found.overrides[0] == "execution=cudagraph"
    assert compose_typed(found.words) == ["execution=cudagraph", "batch_size=256"]


BUSY = {"sm_activity_percent": 80.0, "tensor_activity_percent": 50.0, "dram_activity_percent": 60.0}
BF16, COMPILE = {"precision": {"name": "bf16-mixed"}}, {"execution": {"name": "compile"}}


@pytest.mark.parametrize(
    ("config", "activity", "keys"),
    [
        ({}, {}, ["batch_size=256"]),
        ({}, BUSY, ["batch_size=256"]),
        ({}, {"sm_activity_percent": 40.0, "tensor_activity_percent": 10.0}, ["batch_size=256"]),
        ({}, {"tensor_activity_percent": 10.0}, ["precision=bf16-mixed", "execution=compile"]),
        (BF16, {"tensor_activity_percent": 10.0}, ["execution=compile"]),
        (COMPILE, {"dram_activity_percent": 70.0}, ["precision=bf16-mixed"]),
        ({**BF16, **COMPILE}, {"dram_activity_percent": 70.0}, ["batch_size=256"]),
    ],
)
def test_work_is_made_shorter_by_what_is_not_chosen_already(
    tmp_path: Path, config: dict[str, object], activity: dict[str, float], keys: list[str]
) -> None:
    measured = configuration(tmp_path, **config)
    run = with_devices(measured.runs[0], **{**BUSY, **activity} if activity else {})
    assert compose_typed(work_remedy(replace(measured, runs=(run,))).words) == keys


def test_an_allocator_that_tried_again_is_a_doubt_with_what_helps(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, [replace(Spec(), kind="cpu")])
    edit_ranks(path, lambda rank: rank.update(allocation_retries=3))
    (line,) = [line for line in lines_of(path, "remarks") if "rank 0: 3 times" in line]
    compose_typed(line.partition(";")[2])


@pytest.mark.parametrize(
    ("sweep", "label", "told"),
    [
        ("h200x2_strategies", "gpt2 fsdp x2", True),
        ("h200x2_strategies", "gpt2 ddp x2", False),
        ("h200x2_medium_cudagraph", "medium ddp x2", False),
    ],
)
def test_only_hidden_collectives_ask_for_ddp(sweep: str, label: str, told: bool) -> None:
    analysis = analysis_of(kept(sweep))
    (config,) = (one for one in analysis.measured if one.label == label)
    for found in (work_remedy(config), remedy(config, LostTime("host_late", 1.0, 0.2, ""))):
        assert (found.overrides[:1] == ("strategy=ddp",)) is told
    assert all(one.holds_collectives is told for one in analysis.budgets[config.config_id].losses)
    (run, *_), unknown = config.runs, RankAnatomy(1, "device", dict.fromkeys(PHASES), None)
    replayed = replace(run, anatomy=Anatomy((*run.anatomy.ranks, unknown), None))
    other = work_remedy(replace(config, runs=(replayed,))).overrides
    assert other[:1] != ("strategy=ddp",), "by the better timeline, the last one"


@pytest.mark.parametrize(
    ("sweep", "ms", "first"),
    [
        # To convert 355 M gradients takes 3.6 ms: half of 7.4 is more, and half of 7.2 is not.
        ("rehearsal/gpt2_medium_nvlink", 7.4, "strategy.compression=bf16"),
        ("rehearsal/gpt2_medium_nvlink", 7.2, "batch_size=32"),
        ("h200x2_gpt2", 1.0, "execution=compile"),  # strong scaling: kernels of half the batch
    ],
)
def test_kernels_of_whole_batches_have_collectives(sweep: str, ms: float, first: str) -> None:
    (config,) = (c for c in analysis_of(kept(sweep)).measured if c.devices == 2)
    assert remedy(config, LostTime("device_work", ms, 0.2, "")).overrides[0] == first


NUMBER = re.compile(r"=[-\d._e]+$")
READ: set[tuple[str, ...]] = set()
"""What was read, but for the numbers in it."""


def read_once(words: Iterable[str], override: str = "") -> None:
    """Have these words read, with what is advised: once for all that differ in a number alone."""
    choices = tuple(sorted(word for word in words if not NUMBER.search(word)))
    if (*choices, override) not in READ:
        read((*sorted(words), *filter(None, [override])))
        READ.add((*choices, override))


def typed(config: Configuration) -> tuple[str, ...]:
    """What the configuration was made with, but for what changes no advice, or is gone."""
    words = config.cells[0].planned.overrides
    return tuple(w for w in words if not w.startswith(("+fault", "tracking=", "sweep.doctor=")))


def read_all(config: Configuration) -> None:
    """Give everything that is advised to the reader, which refuses nothing of it."""
    for cause in CAUSE_WORDS:
        for rank in (None, 1):
            found = remedy(config, LostTime(cause, 1.0, 0.2, "", rank))
            said = re.findall(r"[a-z_.]+=[\w\-]+", f"{found.words} {found.deed}")
            assert set(found.overrides) <= set(said)
            for override in said:
                key = override.partition("=")[0]
                read_once(
                    [w for w in typed(config) if w.partition("=")[0].lstrip("+") != key], override
                )


@pytest.mark.parametrize("sweep", [*NAMES, *STALLED], ids=lambda one: getattr(one, "name", one))
def test_all_that_is_advised_of_a_kept_sweep_is_read(sweep: str | Path) -> None:
    known = 0
    for config in analysis_of(sweep if isinstance(sweep, Path) else kept(sweep)).measured:
        try:
            read_once(typed(config))
        except (ConfigError, MissingConfigException):
            continue  # a strategy of an earlier version, or a file of the machine it ran on
        read_all(config)
        known += 1
    # A model of one's own lies beside the records, where Python does not look.
    assert bool(known) != any(word.startswith("model._target_=own.") for word in typed(config))


def test_hardly_anything_is_left_unexplained_of_the_kept_pairs() -> None:
    shares = []
    for folder in kept_sweeps():
        analysis = analysis_of(folder)
        for pair in analysis.pairs:
            budget = analysis.budgets[pair.multi.config_id]
            left = abs(sum(one.ms for one in budget.losses if one.cause == "unexplained"))
            shares.append(left / (budget.measured_ms - budget.ideal_ms))
    assert len(shares) >= 8
    assert median(shares) <= 0.10


def test_no_kept_result_of_several_gpus_is_stalled_or_has_a_second_context() -> None:
    several = [
        one for folder in kept_sweeps() for one in analysis_of(folder).sweep.cells
        if one.result is not None and one.steps and one.result.world_size > 1
        and "fault" not in (one.config or {})  # planted on purpose
        and one.result.ranks[0].device.kind == "cuda"
    ]  # fmt: skip
    assert len(several) > 10
    for one in several:
        assert one.provenance.protocol > 1
        assert {f.code for f in disturbances(one) if f.gravity == "doubt"} == set(), one.path


@pytest.fixture(scope="module")
def looked_at(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A user's classes, imported by one process for all that is advised of them."""
    typed = ((), ("dataset.loader.num_workers=4",))
    words = [("dataset._target_=lit.Module",), *(("dataset._target_=mine.Data", *t) for t in typed)]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(copy_own_code(tmp_path_factory.mktemp("user") / "code"))
        check_own_code([asked("model._target_=lit.SlowModule", *each) for each in words])
        yield


@pytest.mark.parametrize(
    ("data", "own"), [("lit.Module", True), ("mine.Data", False)], ids=["module", "dataset"]
)
@pytest.mark.usefixtures("looked_at")
def test_all_that_is_advised_of_own_code_is_read(tmp_path: Path, data: str, own: bool) -> None:
    own_code = ("model._target_=lit.SlowModule", f"dataset._target_={data}")
    command = ("train.py", "-m", "strategy=single,ddp", *own_code)
    requests = read(command[2:])
    specs = [Spec(config=requests[0].plain), replace(DDP, config=requests[1].plain)]
    path = write_sweep(tmp_path / "sweep", specs)
    edit_ranks(path, lambda rank: rank.update(own_batches=own))
    plan = SweepFolder(path).load_plan()
    cells = tuple(
        replace(cell, overrides=one.overrides)
        for cell, one in zip(plan.cells, requests, strict=True)
    )
    SweepFolder(path).save_plan(replace(plan, command=command, cells=cells))
    analysis = analyse(load_sweep(path))
    assert len(analysis.measured) == 2
    for config in analysis.measured:
        read_all(config)
        found = remedy(config, LostTime("waiting", 1.0, 0.2, ""))
        assert (OWN_BATCHES in found.words) is own
        assert ("worker" in remedy(config, LostTime("loader", 1.0, 0.2, "")).words) is not own
        assert bool(found.overrides) is not own
        for override in found.overrides:
            read(tuple(shlex.split(whole(analysis, override))[3:]))


@pytest.mark.parametrize(
    ("kind", "cores", "is_named"), [("cuda", 15, True), ("cuda", 3, False), ("cpu", 15, None)]
)
def test_threads_that_spin_are_named_before_a_loader_is_asked_for_workers(
    tmp_path: Path, kind: Literal["cpu", "cuda"], cores: float, is_named: bool
) -> None:
    (config,) = analysed(tmp_path, Spec(kind=kind)).measured
    step_ms = config.runs[0].value("step_time_ms")
    edit_ranks(tmp_path, lambda one: one.update(other_threads_cpu_ms_per_step=cores * step_ms))
    (config,) = analyse(load_sweep(tmp_path)).measured
    found = remedy(config, LostTime("loader", 1.0, 0.2, ""))
    assert ("OMP_NUM_THREADS=1" in found.words) == bool(is_named)
    loaders = [*found.overrides[:1]] == ["dataset.loader.num_workers=4"]
    assert loaders == (is_named is not None), "one core has none to load beside"
