"""``rehearse``: what becomes a rehearsal, over which link, and what is refused."""

import json
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.kept_sweep import RESULTS
from fakes.requests import asked
from scalewise import config
from scalewise.config import ConfigError, Link, RehearsalConfig, RehearseConfig, rehearsed
from scalewise.sweep import memory_advice
from scalewise.sweep.auto import rehearse_absent
from scalewise.sweep.plan import Request, make_cell, settle_repeats
from scalewise.sweep.preflight import devices_for
from scalewise.sweep.running_cells import settings_of

SCRIPT = ("experiment=script", "script.command=python s.py", "devices=8")
FSDP = ("devices=8", "rehearse=auto", "strategy=fsdp")
LINK = Link("made_up", 2, ((1_000, 0.1), (1_001_000, 1.1)), "thin air")


def settled(*words: str, here: int | None = 1, gpus: str = "NVIDIA H200") -> list[RehearsalConfig]:
    """What is rehearsed of one request, on a host of so many GPUs."""
    instead, beside, _ = rehearse_absent([asked(*words)], lambda _: here, lambda _: gpus)
    return [own for one in (*instead, *beside) if (own := rehearsed(one.cell)) is not None]


def rehearsal_of(*words: str) -> Request:
    """The only request, on a host of one GPU."""
    (one,), _, _ = rehearse_absent([asked(*words)], lambda _: 1, lambda _: "H200")
    return one


def test_what_the_host_lacks_is_rehearsed_over_the_link_of_its_gpus() -> None:
    (own,) = settled("devices=4", "rehearse=auto")
    assert (own.devices, own.ranks, own.link.name) == (1, 4, "nvlink_h200")
    assert "doctor" in own.link.source


def test_fsdp_is_rehearsed_as_what_was_asked_for_and_told_from_ddp() -> None:
    (own,) = settled("devices=4", "rehearse=auto", "strategy=fsdp", "strategy.sharding=grad_op")
    assert isinstance(own, config.FsdpConfig)
    assert (own.devices, own.ranks, own.sharding) == (1, 4, "grad_op")
    assert own.name == "fsdp4_rehearsed_nvlink_h200"
    (ddp,) = settled("devices=4", "rehearse=auto")
    assert ddp.kind != own.kind


@pytest.mark.parametrize(
    "words", [("devices=2",), ("devices=1",), ("strategy=ddp",), ("strategy=pipeline", "devices=2")]
)
def test_what_fits_runs_for_real_and_keeps_its_id(words: tuple[str, ...]) -> None:
    assert settled(*words, "rehearse=auto", here=2) == []
    (one,), _, lines = rehearse_absent([asked(*words, "rehearse=auto")], lambda _: 2, lambda _: "")
    assert (one.config_id, len(lines)) == (asked(*words).config_id, 1)
    assert ("rehearse.all=true" in lines[0]) == ("devices=1" not in words), (
        "nothing emulates itself"
    )
    assert "rehearse" not in one.plain


@pytest.mark.parametrize("words", [("devices=1", "rehearse=auto"), ("devices=8",)])
def test_where_nobody_knows_the_host_only_a_rehearsal_is_refused(words: tuple[str, ...]) -> None:
    assert settled(*words, here=None) == []
    with pytest.raises(ConfigError, match=r"on hosts that are not known yet.*hydra/launcher=local"):
        settled("devices=8", "rehearse=auto", here=None)


def test_a_script_is_told_of_ranks_that_are_not_there() -> None:
    told = settings_of(rehearsal_of(*SCRIPT, "rehearse=auto").cell, 1)
    assert (told.rehearsed_ranks, "PYTHONPATH" in told.environment) == (8, True)
    assert settings_of(asked(*SCRIPT[:2], "devices=2").cell, 2).rehearsed_ranks is None
    assert "PYTHONPATH" not in settings_of(asked().cell, 1).environment


@pytest.mark.parametrize(("strategy", "advised"), [("ddp", True), ("fsdp", False)])
def test_who_rehearses_too_large_a_model_is_told_to_divide_it(strategy: str, advised: bool) -> None:
    one = rehearsal_of("devices=8", "rehearse=auto", f"strategy={strategy}")
    assert ("strategy=fsdp" in memory_advice(one.cell, 1)) is advised


def test_all_puts_a_rehearsal_beside_what_fits() -> None:
    words = ("devices=2", "rehearse=nvlink_h200", "rehearse.all=true")
    (real,), (beside,), _ = rehearse_absent([asked(*words)], lambda _: 2, lambda _: "")
    assert (real.cell.strategy.kind, beside.cell.strategy.kind) == ("ddp", "rehearsal")
    assert real.workload_id == beside.workload_id
    assert make_cell(beside, 0).planned.name.startswith(
        "medium-tabular-ddp2_rehearsed_nvlink_h200-r0-"
    )


def test_a_rehearsal_has_the_share_of_one_rank_and_is_repeated_as_what_it_stands_for() -> None:
    asking = ("devices=4", "rehearse=auto", "batch_size=128")
    strong, weak = rehearsal_of(*asking), rehearsal_of(*asking, "scaling=weak")
    assert [one.cell.per_device_batch_size(1) for one in (strong, weak)] == [32, 128]
    both = settle_repeats([asked("devices=1"), strong])
    assert [one.cell.repeats for one in both] == ["auto", "auto"]


@pytest.mark.parametrize(
    ("words", "gpus", "expected"),
    [
        (("devices=8", "rehearse=auto"), "NVIDIA A10G", "allowed: rehearse=nvlink_h100 or "),
        ((*SCRIPT, "rehearse=auto"), "AMD EPYC", "allowed: --link nvlink_h100 or "),
        (("devices=8", "rehearse=auto", "strategy=pipeline"), "H200", "strategy=ddp or fsdp, or"),
        ((*FSDP, "precision=fp16-mixed"), "H200", "precision: found fp16-mixed .*; allowed: fp32"),
        ((*FSDP, "execution=cudagraph"), "H200", "execution: found cudagraph .*; allowed: eager"),
        (("strategy=ddp", "rehearse=auto"), "H200", "strategy.devices=auto on 1 device; allowed"),
        (("devices=8", "rehearse=custom"), "H200", "rehearse.latency_us: found null"),
        (("devices=8", "rehearse=doctor"), "H200", "rehearse.record: found null"),
        (("devices=8", "rehearse=doctor", "rehearse.record=none.json"), "H200", "no such record"),
    ],
)  # fmt: skip
def test_what_is_not_rehearsed(words: tuple[str, ...], gpus: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected) as error:
        settled(*words, gpus=gpus)
    assert len(str(error.value).splitlines()) == 1


def test_a_link_is_as_fast_as_its_points_and_a_latency_and_a_bandwidth_between() -> None:
    assert LINK.ms("all_reduce", 1, 2) == LINK.ms("all_reduce", 1_000, 2) == 0.1
    assert LINK.ms("all_reduce", 501_000, 2) == pytest.approx(0.6)
    assert LINK.ms("all_reduce", 2_002_000, 2) == pytest.approx(2.2)
    # Of eight ranks each link carries 1.75 times as much, of a broadcast as much as of two.
    assert replace(LINK, ranks=4).ms("all_reduce", 501_000, 4) == pytest.approx(0.6), "as measured"
    assert LINK.ms("all_reduce", 400_000, 8) == LINK.ms("broadcast", 700_000, 8)
    assert LINK.ms("all_gather", 800_000, 8) == LINK.ms("all_reduce", 400_000, 8)


def test_two_figures_make_a_link() -> None:
    link = RehearseConfig("custom", latency_us=20, bus_gb_s=10).link("")
    assert link.ms("all_reduce", 10**8, 2) == pytest.approx(10.02, rel=1e-3)
    assert link.source == "20 us and 10 GB/s, as typed"


def test_the_same_curve_is_the_same_link_wherever_its_record_lies(tmp_path: Path) -> None:
    with zipfile.ZipFile(RESULTS / "rehearsal/gpt2_x4_h100.zip") as kept:
        here, there = (kept.extract("doctor.json", tmp_path / name) for name in ("a", "b"))
    links = [RehearseConfig("doctor", record=at).link("") for at in (here, str(Path(there).parent))]
    assert links[0] == links[1]
    assert len(links[0].points) > 10


def test_an_examination_without_collectives_makes_no_link(tmp_path: Path) -> None:
    path = tmp_path / "doctor.json"
    path.write_text(json.dumps({"schema_version": 1}))
    with pytest.raises(ConfigError, match=r"rehearse\.record: .*doctor\.json"):
        RehearseConfig("doctor", record=str(path)).link("")


def test_too_few_gpus_are_refused_with_the_key_that_rehearses() -> None:
    from scalewise.gpu import Host, HostMismatch
    from scalewise.records import DeviceInfo

    host = Host((DeviceInfo("cuda", "NVIDIA H200", "GPU-0", 0),), None, {})
    with pytest.raises(HostMismatch, match=r"\(rehearse=true rehearses more"):
        devices_for(asked("devices=8"), host)
    script = ("experiment=script", "script.command=ls", "model.name=ls", "devices=8")
    with pytest.raises(HostMismatch, match=r"\(--rehearse 8 rehearses more"):
        devices_for(asked(*script), host)
    other = replace(host, slots=(replace(host.slots[0], name="NVIDIA A10G"),))
    for words, found in ((["devices=8"], "rehearse="), (script, "--rehearse 8 --link ")):
        with pytest.raises(HostMismatch, match=rf"\({found}nvlink_h100 or .* or {found}doctor "):
            devices_for(asked(*words), other)
    with pytest.raises(HostMismatch, match=r"the devices of this host$"):
        devices_for(asked("devices=8"), replace(host, slots=(DeviceInfo("cpu", "a CPU"),)))
