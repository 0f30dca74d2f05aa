"""Products of matrices on a CPU: what is multiplied, and the rate that comes of it."""

from __future__ import annotations

import pytest
import torch

from scalewise.doctor.compute import Precision, gemm, gemm_rate, gemm_tflops, precisions

_CPU = torch.device("cpu")


def test_a_product_of_matrices_counts_two_operations_a_term() -> None:
    assert gemm_tflops(8192, 1.4e-3) == pytest.approx(785.4, abs=0.1)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_products_are_of_random_matrices_and_right(precision: Precision) -> None:
    result = gemm(_CPU, precision, 64)()
    assert isinstance(result, torch.Tensor)
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(64, 64, generator=generator) for _ in range(2))
    error = torch.linalg.norm(result.float() - a @ b) / torch.linalg.norm(a @ b)
    assert float(error) < (1e-2 if precision == "bf16" else 1e-5)


@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        ((7, 0), ("fp32", "fp16")),
        ((8, 0), ("fp32", "tf32", "bf16", "fp16")),
        ((8, 9), ("fp32", "tf32", "bf16", "fp16", "fp8")),
        ((9, 0), ("fp32", "tf32", "bf16", "fp16", "fp8")),
    ],
)
def test_fp8_is_measured_where_the_hardware_multiplies_it(
    capability: tuple[int, int], expected: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: capability)
    assert precisions(torch.device("cuda")) == expected


def test_a_product_in_fp8_is_right_to_its_mantissa() -> None:
    # torch multiplies fp8 on a CPU too, slowly: the call is the one that a GPU gets.
    result = gemm(_CPU, "fp8", 64)()
    assert isinstance(result, torch.Tensor) and result.dtype == torch.bfloat16
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(64, 64, generator=generator) for _ in range(2))
    error = torch.linalg.norm(result.float() - a @ b.t()) / torch.linalg.norm(a @ b.t())
    assert 1e-3 < float(error) < 0.1


def test_measuring_a_precision_leaves_the_process_as_it_was() -> None:
    torch.set_float32_matmul_precision("high")
    try:
        rate = gemm_rate(_CPU, "fp32", 0.01)
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")
    seconds = rate.timing.median_us / 1e6
    assert rate.tflops == pytest.approx(2 * rate.size**3 / seconds / 1e12)
