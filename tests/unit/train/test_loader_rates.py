"""A planted loader's ceiling is found by one rank and by two, and cold is only what was read."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from fakes.loader_ranks import WORKERS, measured, planted_rate, slow
from fakes.rank_team import run_ranks
from fakes.small_fit import composed_cell
from scalewise.config import ConfigError, LoaderConfig
from scalewise.records import LoaderRecord, find_record
from scalewise.train.loader_rates import run_pass
from scalewise.train.page_cache import drop_from_page_cache, named_files, resident_share

ROWS = "dataset._target_=fakes.loader_ranks.Rows"


def warm_rate(record: LoaderRecord | None) -> float:
    assert record is not None and record.warm is not None, record
    return record.warm.global_samples_per_s


@pytest.mark.parametrize("workers", WORKERS)
def test_one_rank_finds_a_planted_ceiling(tmp_path: Path, workers: int) -> None:
    record = measured(tmp_path, *slow(workers))
    assert warm_rate(record) == pytest.approx(planted_rate(workers), rel=0.1)
    assert record is not None and record.cold is None
    assert "names a file" in record.missing["cold"]


def test_two_ranks_find_theirs_together(tmp_path: Path) -> None:
    run_ranks("fakes.loader_ranks", tmp_path, 2)
    record = find_record(tmp_path, LoaderRecord)
    assert warm_rate(record) == pytest.approx(planted_rate(WORKERS[-1]), rel=0.1)
    assert record is not None and record.batch_sizes == (8, 8)


def test_what_workers_have_ready_at_the_start_is_no_speed() -> None:
    """Of two workers with two batches ahead each, six batches are one round after the start."""
    taken, came = run_pass(iter([[]] * 7), LoaderConfig(num_workers=2, prefetch_factor=2), 1.0)
    assert (taken.batches, came) == (2, 7)
    taken, came = run_pass(iter([[]] * 7), LoaderConfig(), 1.0)
    assert (taken.batches, came) == (6, 7)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """A file that the kernel can be made to forget."""
    path = tmp_path / "rows.bin"
    path.write_bytes(os.urandom(2**25))
    drop_from_page_cache([path])
    if resident_share([path]) != 0:
        pytest.skip("files of this file system cannot be dropped from memory, or it is not told")
    return path


def test_a_cold_pass_begins_without_the_files_and_reads_them(tmp_path: Path, rows: Path) -> None:
    rows.read_bytes()
    assert resident_share([rows]) > 0.9  # the kernel may drop a page at any time
    record = measured(tmp_path / "cell", ROWS, f"+dataset.path={rows}")
    assert record is not None and record.cold is not None and record.warm is not None, record
    (found,) = record.dropped
    assert (found.files, found.file_bytes, found.resident_share) == (1, 2**25, 0)
    assert (found.resident_share_after or 0) > 0


def test_files_in_memory_are_not_called_cold(tmp_path: Path) -> None:
    memory = Path("/dev/shm")
    if not memory.is_dir() or subprocess.getoutput(f"stat -f -c %T {memory}") != "tmpfs":
        pytest.skip("no file system in memory")
    path = memory / f"scalewise-test-{os.getpid()}.bin"
    path.write_bytes(bytes(2**22))
    try:
        record = measured(tmp_path, ROWS, f"+dataset.path={path}")
    finally:
        path.unlink()
    assert record is not None and record.cold is None and record.warm is not None
    assert "100% of the files stayed in memory" in record.missing["cold"]


def test_data_that_are_read_before_the_first_batch_have_no_cold_rate(
    tmp_path: Path, rows: Path
) -> None:
    text = rows.with_suffix(".txt")
    text.write_bytes(b"to be or not to be\n" * 100_000)
    record = measured(
        tmp_path / "cell", "model=gpt2_tiny", "dataset=text_file", f"dataset.path={text}"
    )
    assert record is not None and record.cold is None
    assert "read nothing of the files" in record.missing["cold"]


def test_a_data_module_has_loaders_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"found loader with dataset=.*, a LightningDataModule"):
        measured(tmp_path, "dataset._target_=fakes.own_code.Module")


def test_files_are_those_that_arguments_name_and_too_many_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    for name in ("one", "a/two", "a/b/three"):
        (tmp_path / name).write_text(name)
    arguments = {"path": str(tmp_path / "one"), "root": str(tmp_path / "a"), "n": 3, "x": "none"}
    assert {file.name for file in named_files(arguments)} == {"one", "two", "three"}
    assert resident_share([]) is None
    monkeypatch.setattr("scalewise.train.page_cache.MOST_FILES", 2)
    with pytest.raises(ValueError, match="more than 2 files"):
        named_files(arguments)
    shutil.rmtree(tmp_path / "a")
    assert composed_cell("workload=loader").is_timed is False
