"""What a monitored fit is told of itself."""

from __future__ import annotations

import re

import pytest

from scalewise.train.monitor import warn_of_short_fit


@pytest.mark.parametrize("warmup", [0, 1, 3, 10, 100])
@pytest.mark.parametrize("planned", range(1, 40))
def test_the_advice_to_a_short_fit_silences_the_warning(
    caplog: pytest.LogCaptureFixture, warmup: int, planned: int
) -> None:
    warn_of_short_fit(planned, warmup)
    said = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert bool(said) is (planned < warmup + 10)
    if not said:
        return
    advised = re.search(r"train longer, or set Monitor\(warmup_steps=(\d+)\)$", said[0])
    if advised is None:
        assert said[0].endswith("train longer")
        assert planned <= 10 or warmup == 0, "a shorter warm-up would have done"
        return
    assert 1 <= int(advised[1]) < warmup
    caplog.clear()
    warn_of_short_fit(planned, int(advised[1]))
    assert not [r for r in caplog.records if r.levelname == "WARNING"]
