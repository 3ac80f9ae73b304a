"""Linear layers without quantization pack their weights for this project's op.

What: ``dispatch_cpu_unquantized_gemm`` asks layers/linear.py first.
Why: the host picks kernels by the name of an instruction set.
Since: 0.32
Until: a hook of the platform.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import When, patch


@patch(
    "vllm.model_executor.layers.utils",
    "dispatch_cpu_unquantized_gemm(layer, remove_weight)",
    when=When.COMPUTING,
)
def pack(original: Any) -> Any:
    """The host keeps what cannot be packed."""
    from cpu_backend.layers import linear

    def dispatch(layer: Any, remove_weight: bool) -> None:
        if not linear.pack_unquantized(layer, remove_weight):
            original(layer, remove_weight)

    return dispatch
