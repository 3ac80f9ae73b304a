"""Output layers that a model pads itself (PLaMo 3) are not cut between ranks.

What: ``ParallelLMHead`` refuses tokens besides the vocabulary over several ranks.
Why: each rank has a part of both, and the host joins the logits as if it had parts of one, so all
    from the second rank on would be those of other tokens.
Since: 0.30
Until: the host puts them in order (``get_sharded_to_full_mapping``).
"""

from __future__ import annotations

from typing import Any

from cpu_backend.errors import ConfigError
from cpu_backend.host.seam import When, patch


@patch(
    "vllm.model_executor.layers.vocab_parallel_embedding",
    "ParallelLMHead.__init__(self, ...)",
    when=When.COMPUTING,
)
def refuse_parts(original: Any) -> Any:
    """Before weights are read."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, *args, **kwargs)
        if self.tp_size > 1 and self.num_added_embeddings:
            raise ConfigError(
                f"this model has logits for {self.num_added_embeddings} tokens besides its "
                f"{self.org_vocab_size}, which ranks cannot share: use one rank (-tp 1), or stages "
                "(-pp)."
            )

    return __init__
