"""How many samples of each batch every part of the data gives."""

from __future__ import annotations

from collections.abc import Sequence


class BatchSizes:
    """Samples of each shard in a batch, equal or not.

    A strategy that measures its devices first may settle them anew, in the same way on all ranks,
    before the first batch is drawn.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = tuple(sizes)

    def __getitem__(self, shard: int) -> int:
        return self._sizes[shard]

    @property
    def total(self) -> int:
        """Samples of a whole batch."""
        return sum(self._sizes)

    def before(self, shard: int) -> int:
        """Samples of the shards that come before this one in a batch."""
        return sum(self._sizes[:shard])

    def share(self, shard: int) -> float:
        """The part of a batch that this shard gives, 0 to 1."""
        return self._sizes[shard] / self.total

    def settle(self, sizes: Sequence[int]) -> None:
        """Share out the same batch otherwise. Raises ValueError for a batch of another size."""
        if sum(sizes) != self.total:
            raise ValueError(f"sizes: found {tuple(sizes)}; allowed: {self.total} samples in all")
        self._sizes = tuple(sizes)
