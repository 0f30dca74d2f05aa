"""A named configuration as the default, and what is typed over it."""

import tomllib
from pathlib import Path

import pytest

from scalewise.cli import main, overrides
from scalewise.cli.overrides import FILE, save, saved, with_defaults, without_verbose
from scalewise.config import ConfigError

OPTIONS = tomllib.loads(Path(__file__).with_name("options.toml").read_text())


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", ["gpt2-finewebedu-a10gx4", "gpt2_finewebedu_a10gx4"])
def test_dashes_and_underscores_are_alike_and_trackers_are_kept_with_it(name: str) -> None:
    assert save(name) == saved() == ["experiment=gpt2_finewebedu_a10gx4"]
    assert save(name, ["wandb", "trackio"])[1] == "tracking.trackers=[wandb,trackio]"
    assert save(name, ["none"])[1] == "tracking=none"


@pytest.mark.parametrize("wrong", [["nope"], ["wandb", "none"], ["wandb", "wandb"]])
def test_trackers_that_every_run_would_be_refused_for_are_not_saved(wrong: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"^tracking\.trackers.*found .*, or none alone$"):
        save("agnews-base", wrong)
    assert not FILE.exists()


def test_none_takes_it_away(capsys: pytest.CaptureFixture[str]) -> None:
    for name, said in (("agnews-base", "experiment=agnews_base"), ("none", "removed")):
        assert (main(["defconfig", name]), capsys.readouterr().out) == (0, f"{FILE}: {said}\n")
    assert not FILE.exists()
    assert saved() == []


def test_what_is_typed_wins_key_by_key() -> None:
    FILE.write_text("experiment=imdb\ntracking.trackers=[wandb]\n")
    imdb, wandb = saved()
    for typed, left in ((["batch_size=3", "-m"], [imdb, wandb]), (["tracking=none"], [imdb]),
                        (["experiment=agnews_base"], [wandb])):  # fmt: skip
        assert with_defaults(typed) == [*left, *typed]


def test_a_file_that_cannot_be_read_is_one_line() -> None:
    FILE.mkdir()
    with pytest.raises(ConfigError, match=r"^\.defconfig cannot be read: .*; remove it"):
        saved()


@pytest.mark.parametrize(("typed", "understood"), OPTIONS.items())
def test_options_may_stand_between_overrides(typed: str, understood: str) -> None:
    assert overrides.overrides_last(typed.split()) == understood.split()


def test_verbose_is_ours_wherever_it_stands() -> None:
    typed = ["model=medium", "-v", "-m", "strategy=single,ddp"]
    assert without_verbose(typed) == (["model=medium", "-m", "strategy=single,ddp"], True)
    assert without_verbose(["-m", "x=-v"]) == (["-m", "x=-v"], False)
    assert without_verbose(["--verbose"]) == ([], True)
