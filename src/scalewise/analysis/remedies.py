"""What follows from a diagnosis: what to change, as it is typed. Each is to be tried, not believed.

A remedy is the lever that acts on the time the diagnosis measured; whether it pays is for a sweep
of the change against what there is to say.
"""

from __future__ import annotations

from collections.abc import Mapping

from scalewise.analysis.diagnosis import Limit

REMEDIES: Mapping[Limit, str] = {
    "launch-bound": "take the host out of the step (execution=cudagraph, or execution=compile), or "
    "give each launch more work (a larger batch_size); more devices add launches, not speed",
    "input-bound": "load beside the training (dataset.loader.num_workers=4), ahead of it "
    "(dataset.loader.device_prefetch=2), or keep the data on the device "
    "(dataset.loader.device_resident=true)",
    "communication-bound": "reduce less often (accumulate_grad_batches=4 with a larger batch, or "
    "strategy=local_sgd) or less (strategy.compression=bf16 or powersgd), or compute more between "
    "reductions (a larger batch_size); see what the links give: scalewise doctor",
    "straggler": "run without the slow rank's device (hardware.gpus=[...]) and compare; give it a "
    "share it can keep up with (strategy=heterogeneous)",
    "stalls": "find what the host does then (validation, checkpoints, logging, other users); "
    "look at the longest steps' phases",
    "uneven shards": "share the batches evenly: a dataset whose loader scalewise builds is",
    "not sharded": "each rank needs a part of its own: let scalewise or Lightning put the "
    "distributed sampler in; the speedup of this run means nothing",
    "batch too small": "a larger batch_size; under scaling=strong, fewer devices",
    "memory-bound": "less traffic: execution=compile fuses, precision=bf16-mixed halves it",
    "compute-bound": "this is what more devices are for; precision=bf16-mixed or tf32 where it is "
    "fp32",
    "throttled": "cooling and power first; the figures hold for this clock only",
    "allocator thrash": "a smaller batch_size, execution.activation_checkpointing=true, or "
    "strategy=fsdp; then the allocator needs no retries",
    "host oversubscribed": "more cores for each rank, fewer loader workers, or a quieter host",
    "redundant reductions": "strategy.no_sync=true: reduce once an optimizer step",
    "launch-bound stages": "fewer microbatches (strategy.microbatches) or a larger batch_size, so "
    "that each launch has more work, against the bubble that grows with fewer",
    "idle pipeline stages": "more microbatches, or a cut of the model that balances the stages",
    "per-replica throughput": "multiply by the replicas, or measure again; this figure is one's",
    "inflated throughput": "measure again: it counts samples that nobody trained on",
    "unsynchronised timing": "measure again with the device waited for; see docs/method.md",
}  # fmt: skip
