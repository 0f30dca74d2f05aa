"""Tensor parallel: every matrix of a transformer block cut over the devices of a replica."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from scalewise.train.strategies.divided import ReplicaConfig

if TYPE_CHECKING:
    from pytorch_lightning.strategies import Strategy

    from scalewise.train.strategies.base import Setting


@dataclass(frozen=True)
class TensorConfig(ReplicaConfig):
    """``strategy=tensor``."""

    KIND: ClassVar[str] = "tensor"
    OWN_MODELS: ClassVar[tuple[str, ...] | None] = (
        "gpt2.Gpt2",
        "text_classifier.TextClassifier",
    )
    UNFIT_OPTIMIZERS: ClassVar[Mapping[str, str]] = {
        "adafactor": "its row and column means are taken over a matrix that is spread over ranks",
        "muon": "it makes a whole matrix orthogonal, and no rank has one",
    }

    degree: int | Literal["auto"] = "auto"
    """Devices that share one replica; ``auto``: all."""
    shard_vocabulary: bool = True
    """Cut the embedding and the output layer too, and take the loss over parts of the vocabulary:
    no rank ever holds all logits of a token."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_degree("degree")

    def _degree(self) -> int | Literal["auto"]:
        return self.degree


def build_tensor(config: TensorConfig, setting: Setting) -> Strategy:
    """Lightning's process group and our cuts. Raises ValueError for an unfit model."""
    from scalewise.train.parallel.tensor import TensorStrategy

    return TensorStrategy(config, setting)
