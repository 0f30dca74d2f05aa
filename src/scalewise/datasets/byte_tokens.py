"""What the data sets of bytes share: windows, a limit on validation, a fingerprint."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch

from scalewise.datasets.contract import DatasetError
from scalewise.datasets.tensors import TokenWindows
from scalewise.ranges import require

VOCABULARY_SIZE = 256
"""A token is a byte."""


def check_windows(sequence_length: int, max_validation_samples: int | None) -> None:
    """Refuse lengths and limits below one."""
    require("sequence_length", sequence_length, sequence_length >= 1, "at least 1")
    require(
        "max_validation_samples",
        max_validation_samples,
        max_validation_samples is None or max_validation_samples >= 1,
        "at least 1, or null for no limit",
    )


class ByteParts:
    """Bytes to train on and bytes to judge by, cut into windows."""

    def __init__(
        self,
        train: bytes,
        validation: bytes,
        sequence_length: int,
        max_validation_samples: int | None,
        source: str,
    ) -> None:
        self.train = _windows(train, sequence_length, None, source)
        self.validation = (
            _windows(validation, sequence_length, max_validation_samples, source)
            if validation
            else None
        )
        self._bytes = (train, validation)
        self._sequence_length = sequence_length
        self._source = source

    def describe(self) -> dict[str, Any]:
        """Sizes, and a hash of the data: another interpreter has another standard library."""
        digest = hashlib.sha256(b"".join(self._bytes)).hexdigest()
        return {
            "source": self._source,
            "synthetic": False,
            "train_samples": len(self.train),
            "validation_samples": len(self.validation) if self.validation is not None else 0,
            "sequence_length": self._sequence_length,
            "vocabulary_size": VOCABULARY_SIZE,
            "train_bytes": len(self._bytes[0]),
            "validation_bytes": len(self._bytes[1]),
            "sha256": digest,
        }


def join(texts: Sequence[bytes]) -> bytes:
    """Texts after one another, each ended by a zero byte."""
    return b"".join(text + b"\0" for text in texts)


def _windows(data: bytes, length: int, limit: int | None, source: str) -> TokenWindows:
    if len(data) <= length:
        raise DatasetError(
            f"dataset.sequence_length: found {length}; allowed: below {len(data)}, "
            f"the bytes in a part of {source}"
        )
    tokens = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    count = (len(data) - 1) // length
    every = 1 if limit is None else -(-count // limit)
    return TokenWindows(tokens, length, every)
