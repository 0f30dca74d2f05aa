"""What the runs behind a speedup could have shown, by the test that its verdict rests on."""

from __future__ import annotations

from scalewise.analysis.scaling import Pair
from scalewise.analysis.sequential import adaptive, last_look, nominal_level
from scalewise.analysis.significance import detectable_effect


def detectable_speedup(pair: Pair) -> float | None:
    """The smallest speedup above 1 that such runs would show four times in five.

    To show one is an interval that excludes 1, at the level of the pair's own: 95 %, or under
    ``repeats=auto`` that of its last look, with the runs that this look saw. None where
    :func:`~scalewise.analysis.significance.detectable_effect` has none.
    """
    above, below = pair.multi.values("samples_per_s"), pair.single.values("samples_per_s")
    asked = adaptive(pair.multi.cells[0].config)
    if asked is None:
        return detectable_effect(above, below)
    runs = last_look(min(len(above), len(below)), asked.cap)
    return detectable_effect(above[:runs], below[:runs], nominal_level(runs, cap=asked.cap))
