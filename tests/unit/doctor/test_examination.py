"""The command line of an examination, and a measurement that fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scalewise.cli import main
from scalewise.doctor import Plan, worker
from scalewise.doctor.worker import Examination
from scalewise.records import DeviceInfo, GemmRate


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--devices", "9999"], "--devices: found 9999; allowed: 1 to"),
        (["--gpus", "2"], "hardware.gpus: found [2]; allowed: all"),
    ],
)
def test_options_that_do_not_fit_the_host_are_one_line(argv: list[str], message: str) -> None:
    """In a process of its own: other tests leave a fake driver in this one."""
    done = subprocess.run(
        [sys.executable, "-m", "scalewise", "doctor", *argv],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"scalewise doctor: {message}") and done.stderr.count("\n") == 1


@pytest.mark.parametrize("argv", [["--devices", "0"], ["--soak", "-1"], ["--gpus", "1,,2"]])
def test_values_out_of_range_end_with_status_2(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *argv]) == 2
    assert argv[0] in capsys.readouterr().err


def test_the_parent_needs_neither_torch_nor_hydra_nor_trackers() -> None:
    code = (
        "import sys, scalewise.doctor.examination; from scalewise.report import show_doctor; "
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"torch", "hydra", "omegaconf", "pytorch_lightning", "wandb", "trackio", "pynvml"}
    assert heavy.isdisjoint(done.stdout.split())


def test_one_measurement_that_fails_is_missing_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = worker.gemm_rate

    def fails_for_bf16(device: object, precision: str, budget_s: float) -> GemmRate:
        if precision == "bf16":
            raise RuntimeError("cuBLAS has no opinion\nand a stack")
        return real(device, precision, 0.01)  # type: ignore[arg-type]

    monkeypatch.setattr(worker, "gemm_rate", fails_for_bf16)
    device = DeviceInfo("cpu", "Xeon")
    examination = Examination(Plan(quick=True), tmp_path, 0, 1, device)
    assert examination.run() == 0
    found = examination.record.found
    assert found.missing["gemm bf16"] == "RuntimeError: cuBLAS has no opinion"
    assert [g.precision for g in found.gemm] == ["fp32"] and found.launch and found.copies
    assert "they need two devices" in found.missing["collectives and pairs"]
    assert found.stage == "done" and found.seconds.keys() >= {"launches", "copies"}
