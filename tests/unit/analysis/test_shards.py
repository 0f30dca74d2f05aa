"""Shards must be disjoint and cover the data; an earlier project's were not."""

from typing import Any

import numpy as np
import pytest

from scalewise.analysis.balance import ShardAudit, audit_shards
from scalewise.records import ShardIndices


def audit(
    *indices: list[int] | np.ndarray, size: int, complete: bool = True, batch: int | None = None
) -> ShardAudit:
    shards = [
        ShardIndices(r, np.asarray(i, dtype=np.int64), size, complete)
        for r, i in enumerate(indices)
    ]
    return audit_shards(shards, len(shards), batch)


ORDER = np.random.default_rng(0).permutation(100)
SHUFFLED = [np.random.default_rng(rank).permutation(100) for rank in range(4)]
DRAWN = np.random.default_rng(3).integers(0, 100, size=(2, 80))


def padded(ranks: int, twice: int) -> list[list[int]]:
    """Shards of 400 samples, of which rank 0 feeds ``twice`` that rank 1 feeds too."""
    own = [list(range(rank, 400, ranks)) for rank in range(ranks)]
    own[0] += [ranks * i + 1 for i in range(twice)]
    return own


@pytest.mark.parametrize(
    ("indices", "settings", "verdict", "overlap"),
    [
        ([ORDER[rank::4] for rank in range(4)], {}, "sharded", 0),
        (SHUFFLED, {}, "every rank sees all data", 100),
        ([ORDER[:20]] * 2, {"complete": False}, "every rank sees all data", 20),
        # 10 samples on 4 ranks: padded to 12 with indices 0 and 1.
        ([[0, 4, 8], [1, 5, 9], [2, 6, 0], [3, 7, 1]], {"size": 10}, "sharded", 2),
        ([range(60), range(50, 100)], {}, "overlap", 10),
        # A distributed sampler pads its last round with at most one sample for each other rank.
        (padded(2, 1), {"size": 400}, "sharded", 1),
        (padded(2, 2), {"size": 400}, "overlap", 2),
        (padded(4, 3), {"size": 400}, "sharded", 3),
        (padded(4, 4), {"size": 400}, "overlap", 4),
        # Less than a global batch may be left out.
        ([range(0, 93, 2), range(1, 93, 2)], {"batch": 8}, "sharded", 0),
        ([range(0, 92, 2), range(1, 92, 2)], {"batch": 8}, "incomplete", 0),
        ([[0, 1], [2, 3]], {"complete": False}, "sharded", 0),
        ([[0, 1, 2, 3], []], {"size": 4}, "incomplete", None),
        ([[], []], {"size": 4}, "not judged", None),
        (DRAWN, {}, "not judged", None),
        ([DRAWN[0]] * 2, {}, "every rank sees all data", len(np.unique(DRAWN[0]))),
    ],
)  # fmt: skip
def test_shards_are_disjoint_and_cover_the_data(
    indices: list[np.ndarray], settings: dict[str, Any], verdict: str, overlap: int | None
) -> None:
    found = audit(*indices, **{"size": 100, **settings})
    assert (found.verdict, found.overlapping_samples) == (verdict, overlap)
    assert (found.coverage is None) == (not settings.get("complete", True) or overlap is None)


@pytest.mark.parametrize("ranks", [[], [0]])
def test_missing_ranks_are_not_judged(ranks: list[int]) -> None:
    shards = [ShardIndices(r, np.arange(5), 10, True) for r in ranks]
    assert audit_shards(shards, 2).verdict == "not judged"
