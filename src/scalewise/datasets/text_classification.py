"""Texts to put into classes, with a vocabulary of the words of the training part only."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from scalewise.config import BelowOne
from scalewise.datasets.contract import DividedData, TensorPairs
from scalewise.datasets.labelled import (
    CsvLayout,
    check_hub,
    read_labelled_csv,
    read_labelled_hub,
    split_indices,
)

PADDING, UNKNOWN, _FIRST_WORD = 0, 1, 2
"""The numbers of no word, of a word that the vocabulary has not, and of its most frequent word."""
_WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)?")


def words(text: str) -> list[str]:
    """The words of a text in lower case: runs of letters and digits, with an apostrophe's end."""
    return _WORD.findall(text.lower())


def number_words(texts: Iterable[Sequence[str]], size: int) -> dict[str, int]:
    """The ``size - 2`` most frequent words of ``texts``, each a list of words, numbered from 2.

    Words equally frequent are taken in the order of the alphabet, so that the same texts give the
    same numbers in whatever order they come.
    """
    counts = Counter(word for text in texts for word in text)
    kept = sorted(counts, key=lambda word: (-counts[word], word))[: size - _FIRST_WORD]
    return {word: number for number, word in enumerate(kept, start=_FIRST_WORD)}


def encode(texts: Sequence[Sequence[str]], numbers: Mapping[str, int], max_tokens: int) -> Tensor:
    """``[texts, max_tokens]`` of 32-bit numbers: cut at ``max_tokens``, filled with padding.

    A text without a word becomes one unknown word, so that no row is all padding.
    """
    rows = torch.full((len(texts), max_tokens), PADDING, dtype=torch.int32)
    for row, text in zip(rows, texts, strict=True):
        found = [numbers.get(word, UNKNOWN) for word in text[:max_tokens]] or [UNKNOWN]
        row[: len(found)] = torch.tensor(found, dtype=torch.int32)
    return rows


@dataclass
class TextClassification(DividedData):
    """Labelled texts, divided with ``seed`` into training and validation.

    They come from the CSV file ``path`` or, where that is None, from the Hugging Face hub:
    ``repository`` (None for the data set's own; a local folder in the hub's layout will do) and
    its ``split``. A subclass gives the layout of the file and its place on the hub.
    """

    layout: ClassVar[CsvLayout]
    hub: ClassVar[str]

    path: Annotated[str, Field(min_length=1)] | None = None
    vocabulary_size: Annotated[int, Field(ge=3)] = 20_000
    max_tokens: PositiveInt = 128
    validation_fraction: BelowOne = 0.2
    seed: int = 42
    repository: str | None = None
    split: str = "train"

    def __post_init__(self) -> None:
        if self.path is None:
            check_hub(self.hub)

    def divide(self) -> tuple[TensorPairs, TensorPairs]:
        data = (
            read_labelled_hub(self.repository or self.hub, self.split, len(self.layout.classes))
            if self.path is None
            else read_labelled_csv(Path(self.path), self.layout)
        )
        texts = [words(text) for text, _ in data]
        train, validation = split_indices(len(texts), self.validation_fraction, self.seed)
        numbers = number_words((texts[i] for i in train), self.vocabulary_size)
        self._words_used = len(numbers) + _FIRST_WORD
        labels = torch.tensor([label for _, label in data])
        first, second = (
            TensorPairs(
                encode([texts[i] for i in rows], numbers, self.max_tokens),
                labels[torch.from_numpy(rows)],
            )
            for rows in (train, validation)
        )
        return first, second

    def describe(self) -> dict[str, int]:
        """With the words that are used, which may be fewer than are allowed."""
        _ = self.train
        return {
            "classes": len(self.layout.classes),
            "vocabulary_size": self._words_used,
            "max_tokens": self.max_tokens,
        }


class AgNews(TextClassification):
    """AG News (Zhang et al., 2015): class 1 to 4, title, description."""

    layout = CsvLayout(
        columns=("class", "title", "description"),
        label="class",
        classes={"1": 0, "2": 1, "3": 2, "4": 3},
        header_labels=("class", "class index"),
    )
    hub = "fancyzhx/ag_news"


class Imdb(TextClassification):
    """IMDB reviews (Maas et al., 2011) as a CSV: review, sentiment."""

    layout = CsvLayout(
        columns=("review", "sentiment"),
        label="sentiment",
        classes={"negative": 0, "positive": 1},
        header_labels=("sentiment",),
    )
    hub = "stanfordnlp/imdb"
