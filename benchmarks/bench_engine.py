"""One engine on the work that users feel: construction, one request, one prompt, many requests.

    PYTHON benchmarks/bench_engine.py --model MODEL [--dtype D] [--work s:32:256 p:1024 ...]

Runs with any vLLM: the environment of PYTHON decides which. ``s:in:out`` is one request (decode
speed), ``p:in`` one prompt and one token, ``t:n:in:out`` n requests at once. Prints one JSON
object.
``compare.sh`` runs two environments A B A B.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")


def run(llm: Any, requests: int, inputs: int, outputs: int) -> float:
    """Seconds for fresh random prompts, so that the prefix cache never helps."""
    from vllm import SamplingParams

    prompts = [
        {"prompt_token_ids": [random.randrange(100, 40000) for _ in range(inputs)]}
        for _ in range(requests)
    ]
    sampling = SamplingParams(temperature=0, max_tokens=outputs, ignore_eos=True)
    start = time.perf_counter()
    llm.generate(prompts, sampling, use_tqdm=False)
    return time.perf_counter() - start


def rate(llm: Any, work: str) -> float:
    """Tokens per second: of decoding (s), of the prompt (p), of all outputs (t)."""
    kind, *numbers = work.split(":")
    sizes = [int(number) for number in numbers]
    if kind == "s":
        inputs, outputs = sizes
        first = run(llm, 1, inputs, 1)
        return (outputs - 1) / (run(llm, 1, inputs, outputs) - first)
    if kind == "p":
        return sizes[0] / run(llm, 1, sizes[0], 1)
    requests, inputs, outputs = sizes
    return requests * outputs / run(llm, requests, inputs, outputs)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--work", nargs="+", default=["s:32:256", "p:1024", "t:16:64:64"])
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    start = time.perf_counter()
    from vllm import LLM

    llm = LLM(options.model, dtype=options.dtype, max_model_len=2048, enforce_eager=True)
    result: dict[str, Any] = {"construct_s": round(time.perf_counter() - start, 2)}
    run(llm, 2, 16, 8)
    for work in options.work:
        result[work] = [round(rate(llm, work), 2) for _ in range(options.repeats)]
    print("\n" + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
