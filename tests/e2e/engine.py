"""Engines in processes of their own: jobs as lines of JSON on stdin, results as lines on stdout.

Job: {"engine": {LLM arguments}, "batches": [[prompt token ids, ...], ...], "sampling": {...}}, or a
list of such samplings, one per batch.
Result: per batch and request {"tokens", "logprobs" (of the chosen tokens), "prompt_logprobs",
"cached"} in the order of the job; of an engine with "runner": "pooling" the embeddings.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from pathlib import Path
from typing import Any

MARK = "RESULT "
FAILED = "FAILED "
NEW_TOKENS = 12  # generated per prompt where tokens are compared
# What every engine imports on its way.
PRELOADED = (
    "cpu_backend.worker.worker",
    "transformers.models.auto.processing_auto",
    "vllm.entrypoints.llm",
    "vllm.model_executor.models.llama",
    "vllm.v1.engine.core",
)
SECONDS = 600  # for one job, generous: a wedged engine must fail the test
CLOSE_SECONDS = 30  # for the process to end when no job is left


def check_replayed(log: str) -> None:
    """Fails where steps were to be replayed and are not: right answers, but slow ones."""
    reasons = re.findall(r".* not replayed with this model: .*", log)
    assert not reasons, reasons


class Engines:
    """A process that has imported the host and forks one more for each job.

    So a job costs no imports, and finds the host as nobody has used it.
    """

    def __init__(self, **environ: str) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed in close)
        self._begin = 0  # of the last job's words in it
        self._output: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=_environment(environ),
            start_new_session=True,
        )

    def run(self, job: dict[str, Any]) -> list[list[Any]]:
        """The results of ``job``; fails with the engine's last words when the process dies."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._begin = self._errors.seek(0, os.SEEK_END)
        self._output.clear()
        limit = threading.Timer(SECONDS, os.killpg, (self._process.pid, signal.SIGKILL))
        limit.start()
        try:
            print(json.dumps(job), file=self._process.stdin, flush=True)
            # The engine's process shares the output.
            for line in self._process.stdout:
                if line.startswith(MARK):
                    check_replayed(self.log())
                    results: list[list[Any]] = json.loads(line.removeprefix(MARK))
                    return results
                if line.startswith(FAILED):
                    break
                self._output.append(line)
        finally:
            limit.cancel()
        raise AssertionError(self.log()[-20000:])

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def log(self) -> str:
        """What was written beside the results of the last job, by this process and its engine."""
        self._errors.seek(self._begin)
        return "".join(self._output) + self._errors.read().decode(errors="replace")

    def close(self) -> None:
        try:
            self._process.communicate(timeout=CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()
        self._errors.close()


# By environment, for all tests of a run: most jobs want the same one, and libraries read theirs
# when they are loaded.
_engines: dict[frozenset[tuple[str, str]], Engines] = {}
MOST_ENGINES = 2  # each keeps half a gigabyte of imported modules


def _environment(environ: dict[str, str]) -> dict[str, str]:
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "WARNING", **environ}
    env.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    env.pop("PYTEST_CURRENT_TEST", None)
    return env


@atexit.register
def _close_all() -> None:
    while _engines:
        _engines.popitem()[1].close()


def run(job: dict[str, Any], **environ: str) -> list[list[Any]]:
    """The results of one job in a process with these environment variables."""
    return run_and_log(job, **environ)[0]


def run_and_log(job: dict[str, Any], **environ: str) -> tuple[list[list[Any]], str]:
    """The results of one job and what the process wrote beside them."""
    key = frozenset(_environment(environ).items())
    engines = _engines.pop(key, None)
    if engines is None or not engines.alive:
        while len(_engines) >= MOST_ENGINES:
            _engines.pop(next(iter(_engines))).close()
        engines = Engines(**environ)
    _engines[key] = engines  # the last used one is the last to be closed
    return engines.run(job), engines.log()


def run_by(program: list[str], job: dict[str, Any], folder: Path) -> tuple[list[list[Any]], str]:
    """The same by a process that ``program`` starts, in ``folder``."""
    command = [*program, sys.executable, str(Path(__file__).resolve())]
    done = subprocess.run(
        command,
        cwd=folder,
        env=_environment({}),
        input=json.dumps(job),
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    found = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    assert found, done.stderr[-4000:]
    check_replayed(done.stdout + done.stderr)
    return json.loads(found[0].removeprefix(MARK)), done.stdout + done.stderr


def _main() -> None:
    for module in PRELOADED:
        importlib.import_module(module)
    gc.freeze()  # a child's collections would copy every page of what was imported
    for line in sys.stdin:
        job = multiprocessing.get_context("fork").Process(target=_try, args=(json.loads(line),))
        job.start()
        job.join()
        if job.exitcode:
            print(f"\n{FAILED}", flush=True)


def _try(job: dict[str, Any]) -> None:
    """The job, or an end at once: an orderly one would wait for the engine's process."""
    try:
        _run(job)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _run(job: dict[str, Any]) -> None:
    from vllm import LLM, SamplingParams

    pooling = job["engine"].get("runner") == "pooling"
    # The tokenizer, which prompts of token ids do not need, is a third of a small engine's start;
    # the host's poolers want one.
    llm = LLM(device="cpu", **{"skip_tokenizer_init": not pooling, **job["engine"]})
    results = []
    for i, batch in enumerate(job["batches"]):
        prompts = [{"prompt_token_ids": ids} for ids in batch]
        if pooling:
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
