"""The environment of a rank is recorded as far as it changes times or results, and no secret is."""

from __future__ import annotations

import pytest

from scalewise.host import recorded_in


@pytest.mark.parametrize(
    ("names", "are_recorded"),
    [
        ("NCCL_P2P_DISABLE NCCL_TOPO_FILE NCCL_A_LATER_VERSIONS TORCH_NCCL_BLOCKING_WAIT", True),
        ("TORCHINDUCTOR_MAX_AUTOTUNE PYTORCH_CUDA_ALLOC_CONF CUBLASLT_WORKSPACE_SIZE", True),
        ("CUDA_VISIBLE_DEVICES CUDA_HOME NVIDIA_TF32_OVERRIDE OMP_NUM_THREADS MKL_CBWR", True),
        ("NCCL_COMM_ID NCCL_HOSTID NCCL_DEBUG_FILE NCCL_TOPO_DUMP_FILE TORCH_HOME", False),
        ("NVIDIA_API_KEY WANDB_API_KEY MKL_TOKEN HOME USER PATH CUDA_CACHE_PATH", False),
    ],
)
def test_variables_are_recorded_by_their_names(names: str, are_recorded: bool) -> None:
    environment = dict.fromkeys(names.split(), "1")
    assert recorded_in(environment) == (environment if are_recorded else {})
