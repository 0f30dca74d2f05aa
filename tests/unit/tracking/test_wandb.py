from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

import pytest

from scalewise.tracking.config import TrackingConfig, WandbMode
from scalewise.tracking.wandb import logged_in, resolve_mode
from scalewise.tracking.wandb_file import count_history, read_records


@pytest.fixture(autouse=True)
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No account and no settings of whoever runs the tests; returns the netrc's path."""
    for name in list(os.environ):
        if name.startswith("WANDB_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    return tmp_path / "netrc"


def test_nobody_is_logged_in() -> None:
    assert not logged_in()
    assert resolve_mode(TrackingConfig()) == "offline"


@pytest.mark.parametrize(
    ("environment", "asked", "mode"),
    [
        (None, "auto", "online"),
        (None, "offline", "offline"),
        (None, "online", "online"),
        ("offline", "online", "offline"),
        ("online", "offline", "online"),
        ("dryrun", "online", "offline"),
        ("disabled", "auto", "disabled"),
    ],
)
def test_mode_with_a_key(
    environment: str | None, asked: WandbMode, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    if environment is not None:
        monkeypatch.setenv("WANDB_MODE", environment)
    assert resolve_mode(TrackingConfig(wandb_mode=asked)) == mode


def test_netrc_counts_for_its_own_host(nobody: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody.write_text("machine wandb.example.org login user password secret\n")
    nobody.chmod(0o600)
    assert not logged_in()
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert logged_in()


def piece(kind: int, data: bytes) -> bytes:
    return struct.pack("<IHB", zlib.crc32(data, zlib.crc32(bytes([kind]))), len(data), kind) + data


@pytest.fixture
def log(tmp_path: Path) -> bytes:
    """A log with two rows of history, the second over two blocks, and a summary between."""
    from wandb.proto import wandb_internal_pb2

    records = []
    for size in (10, 40_000):
        record = wandb_internal_pb2.Record()  # type: ignore[attr-defined]
        item = record.history.item.add()
        item.key, item.value_json = "loss", "1" * size
        records.append(record.SerializeToString())
    summary = wandb_internal_pb2.Record()  # type: ignore[attr-defined]
    summary.summary.update.add().key = "loss"
    head = struct.pack("<4sHB", b":W&B", 0xBEE1, 0)
    data = head + piece(1, records[0]) + piece(1, summary.SerializeToString())
    room = 32768 - len(data) - 7
    return data + piece(2, records[1][:room]) + piece(4, records[1][room:])


def test_history_is_counted_across_blocks(tmp_path: Path, log: bytes) -> None:
    path = tmp_path / "run.wandb"
    path.write_bytes(log)
    assert count_history(path) == 2
    assert [r.WhichOneof("record_type") for r in read_records(path)] == [
        "history",
        "summary",
        "history",
    ]


def test_a_torn_or_corrupt_tail_ends_the_reading(tmp_path: Path, log: bytes) -> None:
    path = tmp_path / "run.wandb"
    for cut in (1, 100, len(log) - 32768 - 3):
        path.write_bytes(log[:-cut])
        assert count_history(path) == 1
    path.write_bytes(log[:-5] + b"#####")
    assert count_history(path) == 1


def test_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.wandb"
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="not a WandB transaction log"):
        count_history(path)
