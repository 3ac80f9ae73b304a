"""Sampling in one op: temperature, min-p, top-k, top-p and the draw, a row in cache at a time."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from vllm.config.model import PROCESSED_LOGPROBS_MODES
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.sample.logits_processor.builtin import MinPLogitsProcessor
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler

from cpu_backend import ops


class CPUSampler(Sampler):
    """The host's sampler, whose CPU path walks over all logits once per filter.

    Draws are the host's: the same seeds, from a request's generator where it has one, choose the
    same tokens.
    """

    @staticmethod
    def apply_penalties(
        logits: torch.Tensor,
        sampling_metadata: SamplingMetadata,
        output_token_ids: list[list[int]],
    ) -> torch.Tensor:
        """Repetition, frequency and presence penalties in place, at the tokens that occurred."""
        if sampling_metadata.no_penalties:
            return logits
        assert sampling_metadata.prompt_token_ids is not None
        ends = itertools.accumulate(map(len, output_token_ids), initial=0)
        output_start = np.fromiter(ends, np.int64, len(output_token_ids) + 1)
        tokens = itertools.chain.from_iterable(output_token_ids)
        ops.apply_penalties(
            logits,
            sampling_metadata.prompt_token_ids,
            torch.from_numpy(np.fromiter(tokens, np.int64, output_start[-1])),
            torch.from_numpy(output_start),
            sampling_metadata.repetition_penalties,
            sampling_metadata.frequency_penalties,
            sampling_metadata.presence_penalties,
        )
        return logits

    @staticmethod
    def gather_logprobs(
        logprobs: torch.Tensor, num_logprobs: int, token_ids: torch.Tensor
    ) -> LogprobsTensors:
        """The host's, which has an index error where a prompt's token has no logit, as an image's
        of Molmo; that token cannot be said, so its log-probability is minus infinity."""
        without = token_ids >= logprobs.shape[-1]
        if not without.any():
            return Sampler.gather_logprobs(logprobs, num_logprobs, token_ids)
        found = Sampler.gather_logprobs(logprobs, num_logprobs, token_ids.masked_fill(without, 0))
        found.logprob_token_ids[:, 0] = token_ids
        found.logprobs[without, 0] = -torch.inf
        found.selected_token_ranks[without] = logprobs.shape[-1]
        return found

    def sample(
        self,
        logits: torch.Tensor,
        sampling_metadata: SamplingMetadata,
        logprobs_mode_override: str | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """One token per row of logits [requests, vocabulary] fp32, which it overwrites.

        The host's own steps where all are greedy, where somebody wants the filtered logits or
        where a logits processor is not one of the host's.
        """
        processors = sampling_metadata.logitsprocs.argmax_invariant
        if (
            sampling_metadata.all_greedy
            or (logprobs_mode_override or self.logprobs_mode) in PROCESSED_LOGPROBS_MODES
            or self.use_fp64_gumbel
            or not all(type(processor) is MinPLogitsProcessor for processor in processors)
        ):
            return super().sample(logits, sampling_metadata, logprobs_mode_override)
        assert sampling_metadata.temperature is not None
        min_p = next((p.min_p.view(-1) for p in processors if p.min_p_count), None)
        tokens = ops.sample(
            logits,
            sampling_metadata.temperature,
            sampling_metadata.top_k,
            sampling_metadata.top_p,
            min_p,
            _seeds(len(logits), sampling_metadata.generators),
        )
        return tokens, None


def _seeds(rows: int, generators: dict[int, torch.Generator]) -> torch.Tensor:
    """[rows] int64: what the host draws for its own random choice."""
    seeds = torch.randint(0, 2**31, (rows,))
    for row, generator in generators.items():
        seeds[row] = torch.randint(0, 2**31, (1,), generator=generator).item()
    return seeds
