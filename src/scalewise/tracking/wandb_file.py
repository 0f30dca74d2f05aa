"""Reading the transaction log of a WandB run, to see what really is in it.

The layout is LevelDB's log format with a WandB header in front: blocks of 32 KiB, each holding
pieces of ``crc32 (4 bytes) length (2) kind (1) data``; a record is one FULL piece or FIRST,
MIDDLE..., LAST. See https://github.com/google/leveldb/blob/main/doc/log_format.md.
"""

from __future__ import annotations

import importlib
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

# Its members are generated when it is imported, so no type checker sees them.
_protocol: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")

_BLOCK: Final = 32768
_HEADER: Final = struct.Struct("<4sHB")
_PIECE: Final = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def read_records(path: Path) -> Iterator[Any]:
    """Every whole ``wandb_internal_pb2.Record``; a torn or corrupt tail ends the reading.

    Raises ValueError if the file is not a WandB log at all.
    """
    data = path.read_bytes()
    if len(data) < _HEADER.size or data[:4] != b":W&B":
        raise ValueError(f"{path}: not a WandB transaction log")
    position, parts = _HEADER.size, b""
    while True:
        left = _BLOCK - position % _BLOCK
        if left < _PIECE.size:
            position += left  # a block's end too small for a piece is padding
            continue
        if position + _PIECE.size > len(data):
            return
        checksum, length, kind = _PIECE.unpack_from(data, position)
        start = position + _PIECE.size
        piece = data[start : start + length]
        if kind not in (_FULL, _FIRST, _MIDDLE, _LAST) or len(piece) < length:
            return
        # WandB sums the kind byte and the data with plain CRC-32, not LevelDB's masked CRC-32C.
        if zlib.crc32(piece, zlib.crc32(bytes([kind]))) != checksum:
            return
        parts = piece if kind in (_FULL, _FIRST) else parts + piece
        if kind in (_FULL, _LAST):
            record = _protocol.Record()
            record.ParseFromString(parts)
            yield record
        position = start + length


def count_history(path: Path) -> int:
    """Rows of history in the log."""
    return sum(record.WhichOneof("record_type") == "history" for record in read_records(path))
