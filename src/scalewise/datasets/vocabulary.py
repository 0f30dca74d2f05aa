"""Words and their numbers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

PADDING = 0
UNKNOWN = 1
_FIRST_WORD = 2
_WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)?")


def words(text: str) -> list[str]:
    """The words of a text in lower case: runs of letters and digits, with an apostrophe's end."""
    return _WORD.findall(text.lower())


class Vocabulary:
    """The most frequent words of some texts, numbered from 2; 0 is padding, 1 any other word."""

    def __init__(self, texts: Iterable[Sequence[str]], size: int) -> None:
        """Count ``texts``, each a list of words, and keep at most ``size - 2``.

        Words equally frequent are taken in the order of the alphabet, so that the same texts give
        the same numbers in whatever order they come.
        """
        counts = Counter(word for text in texts for word in text)
        kept = sorted(counts, key=lambda word: (-counts[word], word))[: size - _FIRST_WORD]
        self.numbers = {word: number for number, word in enumerate(kept, start=_FIRST_WORD)}

    def __len__(self) -> int:
        """Numbers in use, padding and unknown included."""
        return len(self.numbers) + _FIRST_WORD

    def encode(self, texts: Sequence[Sequence[str]], max_tokens: int) -> Tensor:
        """``[texts, max_tokens]`` of 32-bit numbers: cut at ``max_tokens``, filled with padding.

        A text without a word becomes one unknown word, so that no row is all padding.
        """
        rows = torch.full((len(texts), max_tokens), PADDING, dtype=torch.int32)
        for row, text in zip(rows, texts, strict=True):
            numbers = [self.numbers.get(word, UNKNOWN) for word in text[:max_tokens]] or [UNKNOWN]
            row[: len(numbers)] = torch.tensor(numbers, dtype=torch.int32)
        return rows
