"""What choosing a step's tokens costs: this project's sampler beside the host's, in turns.

``python -m benchmarks.sampler`` prints a Markdown table of milliseconds per step, medians, for
random logits of the demo model's vocabulary.  Random logits are flat, so that many tokens pass a
filter by mass: top-p costs less on a model's own.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
from vllm.platforms import current_platform
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.logits_processor.builtin import MinPLogitsProcessor
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler

from cpu_backend.worker.sampler import CPUSampler

VOCABULARY = 49152
TOKENS = 128  # of each prompt, and of each output so far
FILTERS: dict[str, Any] = {"k": 40, "p": 0.95, "min_p": 0.05}
CASES: dict[str, dict[str, Any]] = {
    "temperature": {},
    "top-k 40": {"k": 40},
    "top-p 0.95": {"p": 0.95},
    "min-p 0.05": {"min_p": 0.05},
    "all three": FILTERS,
    "all three and penalties": FILTERS | {"penalties": True},
}


def settings(
    requests: int,
    k: int | None = None,
    p: float | None = None,
    min_p: float | None = None,
    penalties: bool = False,
) -> SamplingMetadata:
    """What the host's runner would say of ``requests`` that all ask for the same."""

    def rows(value: float) -> torch.Tensor:
        return torch.full((requests,), value)

    processor = MinPLogitsProcessor.__new__(MinPLogitsProcessor)
    processor.min_p_count = requests if min_p else 0
    processor.min_p = rows(min_p or 0.0).unsqueeze(1)
    return SamplingMetadata(
        temperature=rows(0.8),
        all_greedy=False,
        all_random=True,
        top_p=None if p is None else rows(p),
        top_k=None if k is None else rows(k).int(),
        generators={},
        max_num_logprobs=None,
        no_penalties=not penalties,
        prompt_token_ids=torch.randint(0, VOCABULARY, (requests, TOKENS)),
        frequency_penalties=rows(0.1),
        presence_penalties=rows(0.1),
        repetition_penalties=rows(1.1),
        output_token_ids=torch.randint(0, VOCABULARY, (requests, TOKENS)).tolist(),
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=LogitsProcessors([processor]),
    )


def milliseconds(sampler: Sampler, logits: torch.Tensor, wanted: SamplingMetadata) -> float:
    """Of one call, on a copy of the logits, which it overwrites."""
    copy = logits.clone()
    start = time.perf_counter()
    sampler(copy, wanted)
    return 1e3 * (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--rounds", type=int, default=11)
    arguments = parser.parse_args()
    current_platform.import_kernels()
    samplers = (Sampler(), CPUSampler())
    print("| requests | sampling | host, ms | here, ms | ratio |")
    print("| --- | --- | --- | --- | --- |")
    for requests in arguments.requests:
        logits = 3 * torch.randn(requests, VOCABULARY)
        for name, case in CASES.items():
            wanted = settings(requests, **case)
            times = [
                [milliseconds(sampler, logits, wanted) for sampler in samplers]
                for _ in range(arguments.rounds)
            ]
            host, here = (statistics.median(column) for column in zip(*times, strict=True))
            print(f"| {requests} | {name} | {host:.2f} | {here:.2f} | {host / here:.1f} |")


if __name__ == "__main__":
    main()
