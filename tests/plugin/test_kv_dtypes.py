"""What the cache may hold, and that the host sizes its pages as the kernels lay them out."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from vllm.config.cache import CacheDType
from vllm.utils.torch_utils import STR_DTYPE_TO_TORCH_DTYPE
from vllm.v1.kv_cache_interface import FullAttentionSpec, get_kv_quant_mode

from cpu_backend.attention import kv_dtypes
from cpu_backend.attention.backend import CpuBackendAttention, parts
from cpu_backend.errors import ConfigError


def test_every_other_name_of_the_host_is_refused_with_the_way_out() -> None:
    names = set(get_args(CacheDType))
    assert set(kv_dtypes.QUANTIZED) < names
    for name in names.difference(kv_dtypes.PLAIN, kv_dtypes.QUANTIZED):
        with pytest.raises(ConfigError) as error:
            kv_dtypes.check(name)
        assert str(error.value) == (
            f"--kv-cache-dtype {name} is not supported on the CPU: leave it at auto, or choose one "
            "of fp8, fp8_e4m3, fp8_e5m2, int8_per_token_head."
        )
    for name in kv_dtypes.PLAIN + kv_dtypes.QUANTIZED:
        kv_dtypes.check(name)


@pytest.mark.parametrize("name", kv_dtypes.QUANTIZED)
@pytest.mark.parametrize("head_size", [64, 80])
def test_pages_of_codes_have_room_for_their_scales(name: str, head_size: int) -> None:
    dtype = STR_DTYPE_TO_TORCH_DTYPE[name]
    spec = CpuBackendAttention.customize_spec(
        FullAttentionSpec(
            block_size=32,
            num_kv_heads=3,
            head_size=head_size,
            dtype=dtype,
            kv_quant_mode=get_kv_quant_mode(name),
        )
    )
    scales = 8 if name == "int8_per_token_head" else 0
    assert spec.page_size_bytes == 3 * 32 * (2 * head_size + scales)
    assert spec.state_content_size_bytes == kv_dtypes.token_bytes(name, dtype, 2 * head_size)
    pages = torch.zeros(2, 3, 32, spec.state_content_size_bytes, dtype=dtype)
    keys, values = parts(pages, head_size, head_size)
    assert keys.shape == values.shape == (2, 3, 32, head_size)
    assert values.data_ptr() - keys.data_ptr() == 32 * head_size
    assert keys.stride() == (3 * pages.stride(1), pages.stride(1), head_size, 1)
