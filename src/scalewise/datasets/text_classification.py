"""Texts to put into classes, with a vocabulary of the words of the training part only."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch

from scalewise.datasets.labelled_csv import (
    AG_NEWS,
    IMDB,
    CsvLayout,
    LabelledTexts,
    read_labelled_csv,
)
from scalewise.datasets.labelled_hub import HubLayout, check_hub, read_labelled_hub
from scalewise.datasets.split import check_split, split_indices
from scalewise.datasets.tensors import TensorPairs
from scalewise.datasets.vocabulary import Vocabulary, words
from scalewise.ranges import require


class TextClassification:
    """Labelled texts, divided with ``seed`` into training and validation.

    They come from the CSV file ``path`` or, where that is None, from the Hugging Face hub:
    ``repository`` (None for the data set's own; a local folder in the hub's layout will do) and
    its ``split``. A subclass gives the layouts of both.
    """

    layout: ClassVar[CsvLayout]
    hub: ClassVar[HubLayout]

    def __init__(
        self,
        path: str | None = None,
        vocabulary_size: int = 20_000,
        max_tokens: int = 128,
        validation_fraction: float = 0.2,
        seed: int = 42,
        repository: str | None = None,
        split: str = "train",
    ) -> None:
        columns = ", ".join(self.layout.columns)
        require("path", path, path != "", f"the path of a CSV of {columns}, or null for the hub")
        require("vocabulary_size", vocabulary_size, vocabulary_size >= 3, "at least 3")
        require("max_tokens", max_tokens, max_tokens >= 1, "at least 1")
        check_split(validation_fraction)
        if path is None:
            check_hub(self.hub)
        self.path = None if path is None else Path(path)
        self.repository = repository or self.hub.repository
        self.split = split
        self.vocabulary_size = vocabulary_size
        self.max_tokens = max_tokens
        self.validation_fraction = validation_fraction
        self.seed = seed

    @cached_property
    def _parts(self) -> tuple[TensorPairs, TensorPairs, int]:
        data = self._read()
        texts = [words(text) for text in data.texts]
        train, validation = split_indices(len(texts), self.validation_fraction, self.seed)
        vocabulary = Vocabulary((texts[i] for i in train), self.vocabulary_size)
        labels = torch.tensor(data.labels)
        parts = [
            TensorPairs(
                vocabulary.encode([texts[i] for i in rows], self.max_tokens),
                labels[torch.from_numpy(rows)],
            )
            for rows in (train, validation)
        ]
        return parts[0], parts[1], len(vocabulary)

    def _read(self) -> LabelledTexts:
        if self.path is not None:
            return read_labelled_csv(self.path, self.layout)
        return read_labelled_hub(replace(self.hub, repository=self.repository), self.split)

    @property
    def train(self) -> TensorPairs:
        return self._parts[0]

    @property
    def validation(self) -> TensorPairs | None:
        return self._parts[1] if len(self._parts[1]) else None

    def describe(self) -> dict[str, Any]:
        train, validation, vocabulary_used = self._parts
        return {
            "source": self.path.name if self.path else f"{self.repository} {self.split}",
            "synthetic": False,
            "train_samples": len(train),
            "validation_samples": len(validation),
            "classes": len(self.layout.classes),
            "vocabulary_size": vocabulary_used,
            "max_tokens": self.max_tokens,
        }


class AgNews(TextClassification):
    """AG News (Zhang et al., 2015): class 1 to 4, title, description."""

    layout = AG_NEWS
    hub = HubLayout("fancyzhx/ag_news", text="text", label="label", classes=4)


class Imdb(TextClassification):
    """IMDB reviews (Maas et al., 2011) as a CSV: review, sentiment."""

    layout = IMDB
    hub = HubLayout("stanfordnlp/imdb", text="text", label="label", classes=2)
