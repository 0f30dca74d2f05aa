"""Which part of the data a rank feeds, so that samples of all ranks are counted right."""

from __future__ import annotations

from dataclasses import dataclass

from scalewise.train.batch_sizes import BatchSizes


@dataclass(frozen=True)
class DataShare:
    """The part of each global batch that one rank feeds."""

    shard: int | None = None
    """Its number; ranks that share one feed the same samples. None: a part of its own."""
    sizes: BatchSizes | None = None
    """Of all parts of a batch; None: all as large as this one."""

    def global_samples(self, samples: int, world_size: int) -> int:
        """Different samples that all ranks have fed together when this one has fed ``samples``."""
        if self.sizes is None or self.shard is None:
            return samples * world_size
        return round(samples / self.sizes.share(self.shard))


OWN_SHARE = DataShare()
"""As data parallelism has it: a part of its own, as large as any other."""
