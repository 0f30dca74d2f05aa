"""``scalewise run`` in the words of Hydra, which reads back what was typed."""

import shlex
import sys
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from fakes.kept_sweep import kept
from scalewise.cli.application import main, run, to_advise_on
from scalewise.cli.exits import Exit
from scalewise.cli.overrides import quoted, words_of
from scalewise.config import ConfigError, pasteable
from scalewise.records import Ending
from scalewise.sweep import SweepReport, sweep_reports


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from("ab '\"\\${}[],=:C"), min_size=1, max_size=12))
def test_a_command_is_read_as_it_was_typed(text: str) -> None:
    override = OverridesParser.create().parse_override(f"key={quoted(text)}")
    assert str(OmegaConf.create({"key": override.value()}).key) == text


@pytest.mark.parametrize(
    ("before", "devices"), [(["--"], "1,2"), ([], "1,2"), (["--rehearse", "4", "--"], "1,4")]
)
def test_what_follows_the_command_is_the_scripts(
    monkeypatch: pytest.MonkeyPatch, before: list[str], devices: str
) -> None:
    monkeypatch.setattr("scalewise.cli.hydra_main.train", lambda defaults: 0)
    typed = ["--time", "2m", *before, "python", "train.py", "--devices", "8", "--time", "9", "--"]
    monkeypatch.setattr("sys.argv", typed)
    run.main(typed, standalone_mode=False)
    found = {word.partition("=")[0]: word.partition("=")[2] for word in sys.argv[1:]}
    assert (found["devices"], found["measure.min_time_s"]) == (devices, "120")
    assert found["script.command"] == "'python train.py --devices 8 --time 9 --'"


def test_the_words_ask_for_each_number_of_devices() -> None:
    words = words_of(("python", "train.py"), "1,2", "2m", "auto", ("sweep.retries=0",))
    assert words[:2] == ["-m", "experiment=script"]
    assert {"devices=1,2", "measure.min_time_s=120", "sweep.retries=0"} <= set(words)
    assert not any(word.startswith("repeats") for word in words)
    assert "repeats=5" in words_of(("python", "train.py"), "1", None, "5")


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        (None, ["rehearse=auto"]), ("nvlink_h100,pcie", ["rehearse=nvlink_h100,pcie"]),
        ("a b/doctor.json", ["rehearse=doctor", "rehearse.record='a b/doctor.json'"]),
    ],
)  # fmt: skip
def test_numbers_to_rehearse_need_a_link(link: str | None, expected: list[str]) -> None:
    words = words_of(("python", "train.py"), "1", None, "auto", (), "8,2,1", link)
    assert "devices=1,2,8" in words
    assert [word for word in words if word.startswith("rehearse")] == expected


EACH = {"rehearse": "2", "link": "a.json", "time_s": "3s", "repeats": "auto"}
AGAIN = ("devices", "rehearse", "rehearse.record", "measure.min_time_s", "repeats")


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"devices": "all"}, "--devices: found 'all'"),
        ({"time_s": "soon"}, "--time: found 'soon'"),
        ({"repeats": "twice"}, "--repeats: found 'twice'"),
        ({"rehearse": "all"}, "--rehearse: found 'all'"),
        ({"link": "pcie"}, "--link: found pcie without --rehearse"),
        *(({**EACH, "settings": [f"++{key}=2"]}, rf"^{key}: found twice, by --") for key in AGAIN),
        ({"settings": ["sweep.retries=0", "precision=fp32,bf16-mixed"]}, "--set: found precision="),
    ],
)
def test_no_number_or_what_goes_with_nothing_is_refused(given: dict[str, str], found: str) -> None:
    asked: dict[str, Any] = {"devices": "1", "time_s": None, "repeats": None, **given}
    with pytest.raises(ConfigError, match=found):
        words_of(("python", "train.py"), **asked)


def test_what_is_shown_to_paste_asks_for_the_same_again(monkeypatch: pytest.MonkeyPatch) -> None:
    command = ("python", "a b.py", "--text", "it's $HOME ${x}")
    words = words_of(command, "1,2", "30s", "3", ("sweep.retries=0",))
    earlier = [*words, "precision=fp32"]  # which no script sees, and none is asked for any longer
    shown = shlex.split(pasteable("python train.py", earlier, shlex.join(command)))
    assert shown[:2] == ["scalewise", "run"]
    monkeypatch.setattr("scalewise.cli.hydra_main.train", lambda defaults: 0)
    monkeypatch.setattr("sys.argv", shown)
    run.main(shown[2:], standalone_mode=False)
    assert sys.argv[1:] == words
    assert pasteable("python train.py", ["-m", "seed=1,2"], None) == "python train.py -m seed=1,2"


@pytest.mark.parametrize(
    ("typed", "devices", "on_gpus", "asked"),
    [
        (["model=small"], 1, True, ["devices=1,2,4,8", "rehearse=true"]),
        (["model=small"], 4, True, ["devices=1,4,8", "rehearse=true"]),
        (["model=small"], 2, False, ["devices=1,2", "rehearse=none"]),
        (["rehearse=custom", "rehearse.latency_us=9"], 2, False, ["devices=1,2,4,8"]),
        (["rehearse=none"], 2, True, ["devices=1,2"]),
        (["devices=1,16"], 1, True, ["rehearse=true"]),
    ],
)
def test_what_is_advised_on_is_measured_here_and_rehearsed_beyond(
    typed: list[str], devices: int, on_gpus: bool, asked: list[str]
) -> None:
    assert to_advise_on(typed, devices, on_gpus=on_gpus) == ["-m", *asked, *typed]


@pytest.mark.parametrize(
    ("status", "advises"), [(Exit.DONE, True), (Exit.FAILED, True), (Exit.INTERRUPTED, False)]
)
def test_advice_ends_as_its_measuring_did_and_not_without_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], status: Exit, advises: bool
) -> None:
    monkeypatch.setattr("scalewise.cli.application.run_training", lambda answers: status)
    monkeypatch.setattr("sys.argv", [])
    sweep_reports.append(SweepReport(kept("cpu2_matrix"), {"one": Ending("done")}))
    try:
        assert main(["advise", "devices=1,2"]) == status
    finally:
        sweep_reports.pop()
    assert ("gpt2_tiny" in capsys.readouterr().out) == advises
