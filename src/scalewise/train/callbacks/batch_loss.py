"""The loss of a batch, as Lightning hands it to ``on_train_batch_end``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor


def loss_of(outputs: Any) -> Tensor | None:
    """The loss; None where ``training_step`` returned none, and so left no gradient.

    Who optimizes by hand may return what he likes: only one real number is a loss.
    """
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    if not isinstance(loss, Tensor) or loss.numel() != 1 or loss.is_complex():
        return None
    return loss


def loss_weights(samples: Sequence[int], accumulate: int) -> tuple[float, ...]:
    """By what to multiply the losses of one step's batches for their sum to be the step's mean.

    Lightning has divided each by ``accumulate``, also where an epoch ends before a step has as
    many. A batch counts by its samples; all count alike where those of one are not known (0).
    """
    counts = samples if all(samples) else [1] * len(samples)
    return tuple(accumulate * count / sum(counts) for count in counts)
