"""``devices=2``, and keys that some strategies of a sweep do not know."""

from __future__ import annotations

import pytest

from fakes.requests import asked, composer
from scalewise.config import ConfigError, as_typed, keep_known_keys, open_keys


@pytest.mark.parametrize(
    ("typed", "same"),
    [
        (("devices=1",), ("strategy=single",)),
        (("devices=1", "strategy=local_sgd"), ("strategy=single",)),
        (("devices=2",), ("strategy=ddp", "strategy.devices=2")),
        (("devices=auto",), ("strategy=ddp",)),
        (
            ("devices=2", "strategy.bucket_cap_mb=50"),
            ("strategy=ddp", "strategy.devices=2", "strategy.bucket_cap_mb=50"),
        ),
        (("devices=2", "strategy=local_sgd"), ("strategy=local_sgd", "strategy.devices=2")),
        (("devices=2", "experiment=doctor"), ("strategy.devices=2", "experiment=doctor")),
    ],
)
def test_devices_are_a_strategy_in_other_words(
    typed: tuple[str, ...], same: tuple[str, ...]
) -> None:
    assert asked(*typed).config_id == asked(*same).config_id


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (("devices=0",), "devices: found 0; allowed: 1 or more"),
        (("devices=true",), "devices: found True; allowed: 1 or more"),
        (("devices=2.5",), "devices: found 2.5; allowed: 1 or more"),
        (("devices=2", "strategy=single"), "devices: found 2 with strategy=single; allowed: 1"),
        (("devices=2", "strategy.devices=2"), "devices: found 2 with strategy.devices=2; allowed"),
        (("devices=3", "strategy=pipeline", "strategy.stages=2"), "devices: found 3 with 2 dev"),
        (("devices=2", "strategy.bucket=5"), "strategy.bucket: unknown key (did you mean"),
        (("devices=1", "strategy.bucket_cap_mb=5"), "strategy.bucket_cap_mb: unknown key"),
    ],
)
def test_devices_that_cannot_be_are_refused(typed: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        asked(*typed)
    assert str(refused.value).startswith(message)


def test_a_key_of_one_strategy_is_left_out_of_a_sweeps_others() -> None:
    typed = {"devices": 2, "bucket_cap_mb": 50, "nonsense": 1}
    single, ddp = ({"strategy": {"kind": kind, **typed}} for kind in ("single", "ddp"))
    assert keep_known_keys([single, ddp]) == [
        {"strategy": {"kind": "single", "devices": 1, "nonsense": 1}},
        ddp,
    ]
    assert keep_known_keys([single, single]) == [single, single]


def test_arguments_of_a_class_of_ones_own_need_no_plus() -> None:
    typed = ["model._target_=mine.Net", "model.width=8", "optimizer.lr=0.1", "strategy.x=1"]
    opened = open_keys(typed)
    assert [text.startswith("++") for text in opened] == [True, True, False, True]
    assert as_typed(opened) == typed
    assert composer().plain(typed[:2], 0)["model"]["width"] == 8
