"""The host's activation layers on this backend: right, and in the dtype that they are given."""

from __future__ import annotations

import pytest
import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.custom_op import CustomOp

from cpu_backend.layers import activation


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "name", ["CpuNewGELU", "CpuFastGELU", "CpuQuickGELU", "CpuReLUSquared", "CpuXIELU"]
)
def test_layer(name: str, dtype: torch.dtype, seeded: torch.Generator) -> None:
    with set_current_vllm_config(VllmConfig()):
        layer: CustomOp = getattr(activation, name)()
    x = torch.randn(5, 97, generator=seeded).to(dtype)
    result = layer.forward_cpu(x)
    assert result.dtype == dtype
    eps = torch.finfo(dtype).eps
    expected = layer.forward_native(x.float())
    # tanh cancels in the negative tail of the first two.
    torch.testing.assert_close(result.float(), expected, rtol=eps, atol=4e-7)
