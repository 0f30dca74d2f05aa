from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from scalewise.config import TrackingConfig
from scalewise.records import DataError, build

CONF = Path(__file__).resolve().parents[3] / "conf" / "tracking"


@pytest.mark.parametrize(
    ("option", "trackers"),
    [
        ("both", ("trackio", "wandb")),
        ("trackio", ("trackio",)),
        ("wandb", ("wandb",)),
        ("none", ()),
    ],
)
def test_every_option_builds(option: str, trackers: tuple[str, ...]) -> None:
    plain = yaml.safe_load((CONF / f"{option}.yaml").read_text(encoding="utf-8"))
    config = build(TrackingConfig, plain, "tracking")
    assert config.name == option
    assert config.trackers == trackers


def test_the_default_option_is_the_dataclass() -> None:
    plain = yaml.safe_load((CONF / "both.yaml").read_text(encoding="utf-8"))
    assert build(TrackingConfig, plain) == TrackingConfig()


def test_there_is_no_option_without_a_test() -> None:
    assert sorted(p.stem for p in CONF.glob("*.yaml")) == ["both", "none", "trackio", "wandb"]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("trackers", ["trackio", "mlflow"], r"tracking\.trackers\[1\]: found 'mlflow'"),
        ("trackers", ["wandb", "wandb"], "each may be named once"),
        ("project", "a/b", "letters, digits"),
        ("project", "", "letters, digits"),
        ("wandb_mode", "on", r"tracking\.wandb_mode: found 'on'"),
        ("wandbmode", "offline", "did you mean 'wandb_mode'"),
    ],
)
def test_wrong_values_name_key_and_allowed(key: str, value: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        build(TrackingConfig, {key: value}, "tracking")
