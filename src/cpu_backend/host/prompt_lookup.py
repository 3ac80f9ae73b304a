"""Drafts from a request's own text, looked up by this project's op.

What: ``NgramProposer.batch_propose`` is ops.look_up_drafts.
Why: the host's search is compiled by numba when the first request is drafted for, which then waits
    for seconds, and again in every process.
Since: 0.32
Until: the host's search is compiled beforehand.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import patch, rely_on

rely_on(
    "vllm.v1.spec_decode.ngram_proposer",
    "NgramProposer.min_n",
    "NgramProposer.max_n",
    "NgramProposer.max_model_len",
)


@patch(
    "vllm.v1.spec_decode.ngram_proposer",
    "NgramProposer.batch_propose(self, num_requests, valid_ngram_requests, num_tokens_no_spec, "
    "token_ids_cpu, k)",
)
def without_numba(original: Any) -> Any:
    """Drafts [requests] of at most ``k`` tokens, none where a request is not named or nothing is
    found."""
    del original
    from cpu_backend import ops

    def batch_propose(
        self: Any,
        num_requests: int,
        valid_ngram_requests: list[int],
        num_tokens_no_spec: Any,
        token_ids_cpu: Any,
        k: int,
    ) -> list[list[int]]:
        drafts: list[list[int]] = [[] for _ in range(num_requests)]
        found = ops.look_up_drafts(
            token_ids_cpu,
            num_tokens_no_spec,
            valid_ngram_requests,
            (self.min_n, self.max_n),
            k,
            self.max_model_len,
        )
        for request, tokens in zip(valid_ngram_requests, found, strict=True):
            drafts[request] = tokens
        return drafts

    return batch_propose
