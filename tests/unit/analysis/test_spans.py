"""Spans of time, and what they leave of another."""

from __future__ import annotations

import pytest

from scalewise.analysis.spans import Span, contains, length_s, merged, overlaps, without


def test_spans_that_touch_or_reach_into_each_other_become_one() -> None:
    assert merged([(5.0, 6.0), (1.0, 3.0), (2.0, 2.5), (3.0, 4.0)]) == ((1.0, 4.0), (5.0, 6.0))
    assert merged([]) == ()


@pytest.mark.parametrize(
    ("spans", "left"),
    [
        ((), ((10.0, 20.0),)),
        (((12.0, 13.0), (15.0, 18.0)), ((10.0, 12.0), (13.0, 15.0), (18.0, 20.0))),
        (((1.0, 2.0), (30.0, 40.0)), ((10.0, 20.0),)),
        (((5.0, 11.0), (19.0, 25.0)), ((11.0, 19.0),)),
        (((10.0, 20.0),), ()),
        (((1.0, 30.0),), ()),
    ],
)
def test_what_is_left_of_a_time(spans: tuple[Span, ...], left: tuple[Span, ...]) -> None:
    assert without((10.0, 20.0), spans) == left


def test_a_time_without_length_leaves_nothing() -> None:
    assert without((0.0, 0.0), ()) == ()


def test_what_lies_in_spans() -> None:
    spans = ((1.0, 2.0), (4.0, 6.0))
    assert [contains(spans, when) for when in (0.9, 1.0, 1.9, 2.0, 5.0, 6.0)] == [
        False, True, True, False, True, False,
    ]  # fmt: skip
    assert not overlaps((2.0, 4.0), spans)
    assert overlaps((2.0, 4.1), spans)
    assert overlaps((0.0, 9.0), spans)
    assert length_s(spans) == 3.0
