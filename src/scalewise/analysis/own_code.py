"""Results of several states of a user's own classes: said so, for their average means nothing."""

from __future__ import annotations

from collections.abc import Sequence

from scalewise.analysis.identity import OWN_CODE
from scalewise.analysis.runs import Configuration


def changed_own_code(configs: Sequence[Configuration]) -> list[str]:
    """A line for each class whose source was not the same for all cells of a sweep that name it."""
    return [
        f"your {target} changed between cells ({', '.join(states)}): their results are of "
        "different code"
        for target, states in _states(configs).items()
        if len(states) > 1
    ]


def mixed_own_code(configs: Sequence[Configuration]) -> list[str]:
    """A line for each class whose source was not the same for all repeats of one of ``configs``."""
    mixed = {
        target: states
        for config in configs
        for target, states in _states([config]).items()
        if len(states) > 1
    }
    return [
        f"its runs ran different code: your {target} was {' and '.join(states)}"
        for target, states in mixed.items()
    ]


def _states(configs: Sequence[Configuration]) -> dict[str, list[str]]:
    """Class to every state of its source on record, sorted."""
    seen: dict[str, set[str]] = {}
    for config in configs:
        for name, words in config.identity.items():
            if name.startswith(OWN_CODE):
                # The identity joins what its repeats disagree in.
                seen.setdefault(name.removeprefix(OWN_CODE), set()).update(words.split(" | "))
    return {target: sorted(states) for target, states in seen.items()}
