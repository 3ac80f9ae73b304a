"""Runs one engine in a process of its own: a job as JSON on stdin, results as JSON on stdout.

Job: {"engine": {LLM arguments}, "batches": [[prompt token ids, ...], ...], "sampling": {...}}, or a
list of such samplings, one per batch.
Result: per batch and request {"tokens", "logprobs" (of the chosen tokens), "prompt_logprobs",
"cached"} in the order of the job.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

MARK = "RESULT "
NEW_TOKENS = 12  # generated per prompt where tokens are compared


def run(job: dict[str, Any], **environ: str) -> list[list[dict[str, Any]]]:
    """The results of ``job``; fails with the engine's last words when it dies."""
    return run_and_log(job, **environ)[0]


def run_and_log(job: dict[str, Any], **environ: str) -> tuple[list[list[dict[str, Any]]], str]:
    """The results of ``job`` and what the engine wrote beside them."""
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "WARNING", **environ}
    env.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    command = [sys.executable, str(Path(__file__).resolve())]
    done = subprocess.run(
        command, input=json.dumps(job), capture_output=True, text=True, env=env, timeout=600
    )
    assert done.returncode == 0, done.stderr[-4000:]
    # The engine's process shares the output, before and after.
    [line] = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    return json.loads(line.removeprefix(MARK)), done.stdout + done.stderr


def _main() -> None:
    from vllm import LLM, SamplingParams

    job = json.load(sys.stdin)
    llm = LLM(device="cpu", **job["engine"])
    results = []
    for i, batch in enumerate(job["batches"]):
        options = job["sampling"][i] if isinstance(job["sampling"], list) else job["sampling"]
        sampling = SamplingParams(temperature=0, ignore_eos=True, **options)
        prompts = [{"prompt_token_ids": ids} for ids in batch]
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        results.append([_result(output) for output in outputs])
    print(f"\n{MARK}{json.dumps(results)}", flush=True)


def _result(output: Any) -> dict[str, Any]:
    completion = output.outputs[0]
    tokens = list(completion.token_ids)
    steps = completion.logprobs or []
    prompt = [
        step[token].logprob
        for token, step in zip(output.prompt_token_ids, output.prompt_logprobs or [], strict=False)
        if step
    ]
    return {
        "tokens": tokens,
        "logprobs": [step[token].logprob for token, step in zip(tokens, steps, strict=False)],
        "prompt_logprobs": prompt,
        "cached": output.num_cached_tokens or 0,
    }


if __name__ == "__main__":
    _main()
