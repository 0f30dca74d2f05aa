"""The options of ``tracking``."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from scalewise.config import TrackingConfig
from scalewise.records import DataError, build

CONF = Path(__file__).resolve().parents[3] / "conf" / "tracking"


def test_every_option_builds_and_the_default_is_both() -> None:
    options = {
        path.stem: build(TrackingConfig, yaml.safe_load(path.read_text(encoding="utf-8")))
        for path in CONF.glob("*.yaml")
    }
    assert {name: config.trackers for name, config in options.items()} == {
        "both": ("trackio", "wandb"),
        "trackio": ("trackio",),
        "wandb": ("wandb",),
        "none": (),
    }
    assert all(config.name == name for name, config in options.items())
    assert options["both"] == TrackingConfig()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("trackers", ["trackio", "mlflow"]),
        ("trackers", ["wandb", "wandb"]),
        ("project", "a/b"),
        ("project", ""),
        ("wandb_mode", "on"),
        ("wandbmode", "offline"),
    ],
)
def test_wrong_values_name_their_key(key: str, value: object) -> None:
    with pytest.raises(DataError, match=rf"tracking\.{key}"):
        build(TrackingConfig, {key: value}, "tracking")
