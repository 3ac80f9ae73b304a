"""Engines in a process of their own: jobs as lines of JSON on stdin, results as lines on stdout.

Job: {"engine": {LLM arguments}, "batches": [[prompt token ids, ...], ...], "sampling": {...}}.
Result: per batch and request {"tokens", "logprobs" (of the chosen tokens), "prompt_logprobs",
"cached"} in the order of the job.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

MARK = "RESULT "
NEW_TOKENS = 12  # generated per prompt where tokens are compared
SECONDS = 600  # for one job, generous: a wedged engine must fail the test


class Engines:
    """One process that makes an engine per job, so that several share its imports."""

    def __init__(self, **environ: str) -> None:
        env = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "WARNING", **environ}
        env.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
        self._log = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=env,
        )

    def __enter__(self) -> Engines:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()
        self._log.close()

    def run(self, job: dict[str, Any]) -> list[list[dict[str, Any]]]:
        """The results of ``job``; fails with the engine's last words when the process dies."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        limit = threading.Timer(SECONDS, self._process.kill)
        limit.start()
        try:
            print(json.dumps(job), file=self._process.stdin, flush=True)
            # The engine's process shares the output.
            for line in self._process.stdout:
                if line.startswith(MARK):
                    results: list[list[dict[str, Any]]] = json.loads(line.removeprefix(MARK))
                    return results
        finally:
            limit.cancel()
        self._process.wait()
        self._log.seek(0)
        raise AssertionError(self._log.read().decode(errors="replace")[-4000:])


def run(job: dict[str, Any], **environ: str) -> list[list[dict[str, Any]]]:
    """The results of one job in a process with these environment variables."""
    with Engines(**environ) as engines:
        return engines.run(job)


def _main() -> None:
    from vllm import LLM, SamplingParams

    for line in sys.stdin:
        job = json.loads(line)
        llm = LLM(device="cpu", **job["engine"])
        sampling = SamplingParams(temperature=0, ignore_eos=True, **job["sampling"])
        results = []
        for batch in job["batches"]:
            prompts = [{"prompt_token_ids": ids} for ids in batch]
            outputs = llm.generate(prompts, sampling, use_tqdm=False)
            results.append([_result(output) for output in outputs])
        llm.llm_engine.engine_core.shutdown()
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
