"""Engines in a process of their own: jobs as lines of JSON on stdin, results as lines on stdout.

Job: {"engine": {LLM arguments}, "batches": [[prompt token ids, ...], ...], "sampling": {...}}, or a
list of such samplings, one per batch.
Result: per batch and request {"tokens", "logprobs" (of the chosen tokens), "prompt_logprobs",
"cached"} in the order of the job; of an engine with "runner": "pooling" the embeddings.
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
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed in __exit__)
        self._output: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=env,
        )

    def __enter__(self) -> Engines:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()
        self._errors.close()

    def run(self, job: dict[str, Any]) -> list[list[Any]]:
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
                    results: list[list[Any]] = json.loads(line.removeprefix(MARK))
                    return results
                self._output.append(line)
        finally:
            limit.cancel()
        self._process.wait()
        raise AssertionError(self.log()[-4000:])

    def log(self) -> str:
        """What was written beside results until now, by this process and its engines."""
        self._errors.seek(0)
        return "".join(self._output) + self._errors.read().decode(errors="replace")


def run(job: dict[str, Any], **environ: str) -> list[list[Any]]:
    """The results of one job in a process with these environment variables."""
    return run_and_log(job, **environ)[0]


def run_and_log(job: dict[str, Any], **environ: str) -> tuple[list[list[Any]], str]:
    """The results of one job and what the process wrote beside them."""
    with Engines(**environ) as engines:
        return engines.run(job), engines.log()


def _main() -> None:
    from vllm import LLM, SamplingParams

    for line in sys.stdin:
        job = json.loads(line)
        llm = LLM(device="cpu", **job["engine"])
        results = []
        for i, batch in enumerate(job["batches"]):
            prompts = [{"prompt_token_ids": ids} for ids in batch]
            if job["engine"].get("runner") == "pooling":
                embedded = llm.embed(prompts, use_tqdm=False)
                results.append([output.outputs.embedding for output in embedded])
                continue
            options = job["sampling"][i] if isinstance(job["sampling"], list) else job["sampling"]
            sampling = SamplingParams(temperature=0, ignore_eos=True, **options)
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
