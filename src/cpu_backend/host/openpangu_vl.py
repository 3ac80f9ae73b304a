"""openPangu-VL's encoder runs where flash attention is another's, and in fp32.

What: its check of the kernel of attention finds the one that it asks for; numbers of an image's
    pixels have the dtype of its weights.
Why: the host ends with "Pangu-VL does not support AttentionBackendEnum.TORCH_SDPA backend now",
    though its layers of attention are the ones that all encoders have; and it makes the numbers in
    bf16 whatever the dtype is, so that the first product ends the engine.
Since: 0.30
Until: it does neither.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import When, patch

MODEL = "vllm.model_executor.models.openpangu_vl"


@patch(MODEL, "get_vit_attn_backend", when=When.COMPUTING)
def find(_: Any) -> Any:
    """What the layers attend with is chosen elsewhere."""

    def backend(*_: Any, **__: Any) -> Any:
        from vllm.v1.attention.backends.registry import AttentionBackendEnum

        return AttentionBackendEnum.FLASH_ATTN

    return backend


@patch(
    MODEL,
    "rescale_and_normalize(images, do_rescale, rescale_factor, do_normalize, image_mean, "
    "image_std, dtype)",
    when=When.COMPUTING,
)
def keep_dtype(original: Any) -> Any:
    """That of ``images``, which the host makes the weights'."""

    def numbers(images: Any, *args: Any, **kwargs: Any) -> Any:
        return original(images, *args, **{**kwargs, "dtype": images.dtype})

    return numbers
