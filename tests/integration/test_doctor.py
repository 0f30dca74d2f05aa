"""``scalewise doctor`` for real: two gloo ranks on this host, and one that is killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.train_command import listening, wait_for
from scalewise.config import HardwareConfig, cpu_devices
from scalewise.doctor import find_devices, leased
from scalewise.gpu import Leases
from scalewise.host import descendants, usable_cores
from scalewise.records import DeviceInfo, DoctorReport, find_record

pytestmark = pytest.mark.skipif(len(usable_cores()) < 2, reason="two ranks need two cores")


@pytest.fixture
def examination(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A quick one that is running, on CPU devices of this host."""
    environment = {
        **os.environ,
        "SCALEWISE_RUNTIME_DIR": str(tmp_path / "runtime"),
        "TMPDIR": str(tmp_path),
        "MASTER_PORT": "1",  # left behind by another launcher: must not be believed
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [sys.executable, "-m", "scalewise", "doctor", "--quick", "--json"]
    with subprocess.Popen(
        [*command, "--devices", "2", "--soak", "1", "--out", str(tmp_path / "out")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    ) as process:  # fmt: skip
        yield process
        process.kill()


def test_two_ranks_measure_all_of_a_cpu(examination: subprocess.Popen[str], tmp_path: Path) -> None:
    heard: set[str] = set()
    errors = None
    while errors is None:
        try:
            _, errors = examination.communicate(timeout=0.2)
        except subprocess.TimeoutExpired:
            heard |= listening(descendants(examination.pid))
    assert examination.returncode == 0, errors
    assert heard == {"127.0.0.1"}, "no other host can join"
    report = find_record(tmp_path / "out", DoctorReport)
    assert [rank.stage for rank in report.ranks] == ["done", "done"]
    assert not report.missing and report.devices[0].device.kind == "cpu"
    for rank in report.ranks:
        assert rank.gemm and rank.copies and rank.launch and rank.soak
        assert all(gemm.tflops > 0 for gemm in rank.gemm)
        assert "soak: clocks, temperature, power" in rank.missing
    assert not report.pairs, "the cores of a host have no links of their own"
    assert {rate.collective for rate in report.collectives} == {
        "all_reduce", "all_gather", "reduce_scatter", "broadcast",
    }  # fmt: skip
    for rate in report.collectives:
        assert rate.correct and rate.backend == "gloo" and rate.ranks == 2
        assert rate.algorithm_gb_s == pytest.approx(rate.bytes / rate.timing.median_us / 1e3)
    cores = [set(facts.device.cores) for facts in report.devices]
    assert not cores[0] & cores[1], "each rank has cores of its own"
    assert not list(tmp_path.glob("scalewise-doctor-*")), "nothing is left behind"


def test_a_rank_that_is_killed_is_named_and_what_was_measured_stays(
    examination: subprocess.Popen[str], tmp_path: Path
) -> None:
    os.kill(_rank_process(tmp_path, examination.pid), signal.SIGKILL)
    _, errors = examination.communicate(timeout=120)
    assert examination.returncode == 1, errors
    report = find_record(tmp_path / "out", DoctorReport)
    assert "ended with status -9" in report.missing["rank 1"]
    assert report.ranks[0].gemm, "the other rank's own figures are kept"


def test_no_rank_outlives_examination(examination: subprocess.Popen[str], tmp_path: Path) -> None:
    _rank_process(tmp_path, examination.pid)
    ranks = descendants(examination.pid)
    assert len(ranks) >= 2
    examination.kill()
    wait_for(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in ranks), "their end", 10)


def test_devices_in_use_by_another_job_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("SCALEWISE_RUNTIME_DIR", str(tmp_path))
    shares = cpu_devices(HardwareConfig("auto"), usable_cores())
    lease = Leases().try_lease([DeviceInfo("cpu", "any", cores=shares[0])], 1)
    said: list[str] = []

    def end_the_other(_seconds: float) -> None:
        said.append(capsys.readouterr().err)
        lease.release()

    monkeypatch.setattr("time.sleep", end_the_other)
    slots = find_devices(None, None).slots
    with leased(slots) as own:
        assert own.slots == slots
    assert len(said) == 1 and said[0].startswith("waiting: ")


def _rank_process(folder: Path, parent: int) -> int:
    """The process of rank 1, once both ranks have measured their first product."""

    def both() -> bool:
        records = list(folder.glob("scalewise-doctor-*/rank[01].json"))
        return sum('"tflops"' in path.read_text(encoding="utf-8") for path in records) == 2

    wait_for(both, "two products")
    return next(
        pid
        for pid in descendants(parent)
        if b"\0RANK=1\0" in Path(f"/proc/{pid}/environ").read_bytes()
    )
