"""What the KV cache may hold: the values of ``--kv-cache-dtype`` and the bytes of a page."""

from __future__ import annotations

import torch

from cpu_backend.errors import ConfigError

PLAIN = ("auto", "float32", "bfloat16", "float16")
FP8 = ("fp8", "fp8_e4m3", "fp8_e5m2")
QUANTIZED = (*FP8, "int8_per_token_head")


def check(kv_cache_dtype: str, model_dtype: torch.dtype | None = None) -> None:
    """Raise ConfigError where the cache cannot hold what ``--kv-cache-dtype`` names, of a model of
    that dtype if one is given."""
    if kv_cache_dtype not in PLAIN + QUANTIZED:
        raise ConfigError(
            f"--kv-cache-dtype {kv_cache_dtype} is not supported on the CPU: "
            f"leave it at auto, or choose one of {', '.join(QUANTIZED)}."
        )
    if (
        model_dtype
        and kv_cache_dtype in PLAIN[1:]
        and str(model_dtype) != f"torch.{kv_cache_dtype}"
    ):
        raise ConfigError(
            f"--kv-cache-dtype {kv_cache_dtype} is not supported beside a model in "
            f"{str(model_dtype).removeprefix('torch.')}: leave it at auto, or give --dtype "
            f"{kv_cache_dtype} too."
        )


def token_bytes(kv_cache_dtype: str, model_dtype: torch.dtype, channels: int) -> int:
    """Bytes of one token and KV head: ``channels`` of key and value together, and its scales."""
    # Not at the top: this module is imported while the host still chooses its platform.
    from vllm.utils.torch_utils import get_kv_cache_torch_dtype

    element = get_kv_cache_torch_dtype(kv_cache_dtype, model_dtype).itemsize
    scales = 2 * torch.float32.itemsize if kv_cache_dtype == "int8_per_token_head" else 0
    return channels * element + scales
