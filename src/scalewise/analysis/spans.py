"""Spans of Unix time, each a begin and an end in s; of several, none reaches into the next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Span = tuple[float, float]


def merged(spans: Iterable[Span]) -> tuple[Span, ...]:
    """The same time in spans that lie apart, in their order."""
    found: list[Span] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return tuple(found)


def without(whole: Span, spans: Sequence[Span]) -> tuple[Span, ...]:
    """What is left of ``whole``; ``spans`` lie apart and in order, as :func:`merged` has them."""
    edges = [whole[0], *(edge for span in spans for edge in span), whole[1]]
    gaps = zip(edges[::2], edges[1::2], strict=True)
    left = ((max(begin, whole[0]), min(end, whole[1])) for begin, end in gaps)
    return tuple((begin, end) for begin, end in left if begin < end)


def overlaps(one: Span, spans: Iterable[Span]) -> bool:
    """Whether any time of ``one`` lies in ``spans``."""
    return any(one[0] < end and one[1] > begin for begin, end in spans)


def contains(spans: Iterable[Span], when: float) -> bool:
    """Whether the moment ``when`` lies in ``spans``; their ends do not."""
    return any(begin <= when < end for begin, end in spans)


def length_s(spans: Iterable[Span]) -> float:
    """Of all together."""
    return sum(end - begin for begin, end in spans)
