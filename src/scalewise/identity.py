"""What determines a cell's result, as a hash: the ids by which cells and repeats are known."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from scalewise.train.checkpoint_config import NO_CHECKPOINTS
from scalewise.train.profiling import DEFAULT_PROFILE
from scalewise.validation import to_plain

_ABSENT = {"fault": ("fault", "allow_faults"), "pruning": ("pruning",)}
"""Groups whose option ``none`` leaves no trace, and the keys that go with them."""


def without_absent_groups(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Drop what is not there: a run without pruning or fault has the record and id of one that
    never heard of them."""
    kept = dict(plain)
    for group, keys in _ABSENT.items():
        option = plain.get(group)
        if not isinstance(option, Mapping) or "_target_" in option:
            continue
        if option.get("kind", "none") == "none":
            for key in keys:
                kept.pop(key, None)
    if plain.get("profile") == to_plain(DEFAULT_PROFILE):
        kept.pop("profile", None)
    checkpoint = plain.get("checkpoint")
    if checkpoint == to_plain(NO_CHECKPOINTS):
        kept.pop("checkpoint", None)
    elif isinstance(checkpoint, Mapping) and checkpoint.get("trust") is False:
        kept["checkpoint"] = {key: value for key, value in checkpoint.items() if key != "trust"}
    if plain.get("batch_size") != "auto":
        kept.pop("batch_search", None)
    if plain.get("workload") == "train":
        kept.pop("workload", None)
    return kept


_DOES_NOT_MATTER = (
    "sweep", "tracking", "monitor", "repeats", "precision_percent", "max_repeats",
)  # fmt: skip
"""Keys that say how a cell is run and watched, not what comes out of it."""


def config_id(plain: Mapping[str, Any]) -> str:
    """Hash of what determines a cell's result: repeats of one configuration share it."""
    relevant = {k: v for k, v in plain.items() if k not in _DOES_NOT_MATTER}
    checkpoint = plain.get("checkpoint")
    if isinstance(checkpoint, Mapping) and "trust" in checkpoint:
        # Whom a resumed sweep trusts makes no other cell of one that was begun.
        relevant["checkpoint"] = {**checkpoint, "trust": False}
        relevant = without_absent_groups(relevant)
    text = json.dumps(relevant, sort_keys=True, separators=(",", ":"), default=to_plain)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def cell_id(plain: Mapping[str, Any], repeat: int) -> str:
    """Hash of what determines one run: :func:`config_id` and the number of the repeat."""
    return repeat_id(config_id(plain), repeat)


def repeat_id(configuration: str, repeat: int) -> str:
    """:func:`cell_id` from a :func:`config_id`."""
    return hashlib.sha256(f"{configuration}/{repeat}".encode()).hexdigest()[:12]
