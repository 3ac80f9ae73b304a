"""Multi-head latent attention has one forward, for prompts and decodes.

What: the layer that the host's models make is attention/latent.py's.
Why: the host's takes prompts and decodes apart, expands what lies in the cache for each chunk of a
    prompt, and knows one size of latents on CPUs.
Since: 0.32
Until: a backend may say how its layer computes.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import When, change


@change("vllm.model_executor.layers.mla", "MLAAttention", when=When.COMPUTING)
def one_forward(module: Any) -> None:
    """For the layers that the host will make."""
    from cpu_backend.attention.latent import LatentAttention

    module.MLAAttention = LatentAttention
