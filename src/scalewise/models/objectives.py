"""What a network is trained for and judged by."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional
from torchmetrics import MeanAbsoluteError, MetricCollection
from torchmetrics.classification import MulticlassAccuracy


class Regression(nn.Module):
    """Outputs and targets are ``[samples, targets]``."""

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Mean squared error."""
        return functional.mse_loss(output, target)

    def metrics(self) -> MetricCollection:
        """The mean absolute error over samples and targets."""
        return MetricCollection({"mae": MeanAbsoluteError()})


class Classification(nn.Module):
    """Outputs are logits ``[samples, classes]``, targets class numbers ``[samples]``."""

    classes: int

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Mean cross-entropy in nats."""
        return functional.cross_entropy(output, target)

    def metrics(self) -> MetricCollection:
        """The share of samples put into their class."""
        accuracy = MulticlassAccuracy(num_classes=self.classes, average="micro")
        return MetricCollection({"accuracy": accuracy})
