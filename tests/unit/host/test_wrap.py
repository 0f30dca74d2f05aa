"""A command around the ranks: its placeholders, what is refused, and that nothing outlives it."""

from __future__ import annotations

import pytest

from scalewise.config import SweepConfig
from scalewise.host import wrap_command
from scalewise.sweep.plan import wrapped


def test_placeholders_are_filled_in_and_those_of_nsys_are_left() -> None:
    template = "nsys profile -o '{folder}/rank {rank}' --tag %q{RANK} {local_rank}"
    assert wrap_command(template, 5, 1, "/a b/cell") == [
        "nsys", "profile", "-o", "/a b/cell/rank 5", "--tag", "%q{RANK}", "1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("time {rnak}", r"found the placeholder \{rnak\}.*allowed: \{rank\}"),
        ("  ", "allowed: a command"),
        ("time 'half", "No closing quotation"),
    ],
)
def test_what_cannot_run_is_refused_in_one_line(template: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SweepConfig(wrap=template)


def test_the_launchers_wrap_travels_with_the_cell() -> None:
    assert wrapped({"sweep": {"grace_s": 5}}, "time")["sweep"] == {"grace_s": 5, "wrap": "time"}
    assert wrapped({"sweep": {}}, None) == {"sweep": {}}
