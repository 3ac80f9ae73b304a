"""Processes of the zoo: what was imported once is forked for every model and every engine.

Nothing here may start torch's thread pool before the fork: a child would wait for threads that it
does not have.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECONDS = 300  # for one engine, generous on a busy machine: one that hangs must end
SLOWER = 20 if os.environ.get("ZOO_PYTHON") else 1  # where an emulated Python runs engines


class Failed(Exception):  # noqa: N818 (an outcome, often an expected one)
    """What ended a forked task: ``kind``, the exception's class or the signal's name; ``where``,
    the last lines of its trace or log."""

    def __init__(self, kind: str, message: str, where: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind, self.message, self.where = kind, message, where


def forked(task: Callable[..., Any], *args: Any, seconds: float = SECONDS) -> Any:
    """``task(*args)`` in a process forked from this one, its prints in a file.

    Raises Failed with the child's exception or the signal that ended it.
    """
    with tempfile.TemporaryFile() as log, tempfile.TemporaryFile() as answer:
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            _in_child(task, args, log, answer)
        status = _wait(child, seconds * SLOWER)
        answer.seek(0)
        content = answer.read()
        if not content:
            log.seek(0)
            words = log.read().decode(errors="replace")[-2000:]
            name = signal.Signals(-status).name if status < 0 else f"exit code {status}"
            raise Failed(name, "the process ended without an answer", words)
        value = pickle.loads(content)
        if isinstance(value, Failed):
            raise value
        return value


def _in_child(task: Callable[..., Any], args: tuple[Any, ...], log: Any, answer: Any) -> None:
    """Never returns: what the parent's stack would do on its way out is not the child's."""
    code = 1
    try:
        os.setpgid(0, 0)
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        try:
            result = task(*args)
        except BaseException as error:
            result = describe(error)
        answer.write(pickle.dumps(result))
        answer.flush()
        code = 0
    finally:
        os._exit(code)


def describe(error: BaseException) -> Failed:
    """The exception as plain text, so that it can be pickled; a Failed stays as it is."""
    if isinstance(error, Failed):
        return Failed(error.kind, error.message, error.where)
    trace = "".join(traceback.format_exception(error))
    return Failed(type(error).__name__, str(error), trace[-6000:])


Failed.__reduce__ = lambda self: (Failed, (self.kind, self.message, self.where))  # type: ignore[method-assign,assignment]


def _wait(child: int, seconds: float) -> int:
    """The exit code of ``child`` (negative: its signal), ended by force when time is up."""
    limit = time.monotonic() + seconds
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > limit:
            os.killpg(child, signal.SIGKILL)
            limit = float("inf")
        time.sleep(0.01)


@dataclass(frozen=True)
class Answer:
    """What a request got: tokens, for each the largest log-probabilities in descending order,
    those of the prompt's tokens from the second on, how many came from the prefix cache, and the
    prompt's tokens as the host made them of the request."""

    tokens: tuple[int, ...]
    logprobs: tuple[tuple[float, ...], ...]
    prompt_logprobs: tuple[float, ...]
    cached: int
    prompt: tuple[int, ...]


_KEPT: list[Any] = []


def keep(llm: Any) -> None:
    """Until the process ends, which is at once; an orderly shutdown costs a second."""
    _KEPT.append(llm)


Prompt = tuple[int, ...]


@dataclass(frozen=True)
class Round:
    """Requests sent at once: prompts, or what else has a length and makes a ``request()``."""

    prompts: tuple[Any, ...]
    options: tuple[tuple[str, Any], ...] = ()


def generate(
    folder: Path,
    options: dict[str, Any],
    rounds: list[Round],
    media: set[str] | None = None,
) -> list[list[Answer]]:
    """Make an engine for the checkpoint in ``folder`` and ask it greedily, round after round.

    media: the kinds that it is expected to take.  Raises Failed, too, if steps are not replayed
    without ``enforce_eager``: the answers are right then, but slow.
    """
    from vllm import LLM, SamplingParams

    llm = LLM(str(folder), **{"skip_tokenizer_init": True, **options})
    keep(llm)
    answers = []
    for asked in rounds:
        sampling = SamplingParams(
            temperature=0, ignore_eos=True, detokenize=False, **dict(asked.options)
        )
        prompts = [request(prompt) for prompt in asked.prompts]
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        answers.append([answer(output) for output in outputs])
    check_replay(llm)
    if media is not None:
        check_media(llm, media)
    return answers


def check_media(llm: Any, expected: set[str]) -> None:
    """Raise Failed where the engine takes other kinds of media: they would go uncompared."""
    from vllm.multimodal import MULTIMODAL_REGISTRY

    config = llm.llm_engine.model_config
    taken = set(MULTIMODAL_REGISTRY.get_processing_info(config).supported_mm_limits)
    if taken != expected:
        raise Failed("NotAsked", f"the host takes {', '.join(sorted(taken))}", "")


def check_replay(llm: Any) -> None:
    """Raise Failed where decode steps should be replayed and are not."""
    if llm.llm_engine.model_config.enforce_eager:
        return
    reason = next(filter(None, llm.collective_rpc(_not_replayed)), "")
    if reason:
        raise Failed("NotReplayed", reason, "")


def _not_replayed(worker: Any) -> str:
    """Why this rank replays no steps; empty if it does."""
    replay = worker.model_runner.step_replay
    if replay is None:
        return "this engine records nothing"
    return replay.given_up or ("" if replay.replays else "no step was run again")


def request(prompt: Any) -> dict[str, Any]:
    """What the host takes: of tokens, or of what makes its own."""
    if isinstance(prompt, tuple):
        return {"prompt_token_ids": list(prompt)}
    made: dict[str, Any] = prompt.request()
    return made


def answer(output: Any) -> Answer:
    completion = output.outputs[0]
    steps = [
        sorted((entry.logprob for entry in step.values()), reverse=True)
        for step in completion.logprobs or []
    ]
    prompt = [
        step[token].logprob
        for token, step in zip(output.prompt_token_ids, output.prompt_logprobs or [], strict=False)
        if step
    ]
    return Answer(
        tuple(completion.token_ids),
        tuple(map(tuple, steps)),
        tuple(prompt),
        output.num_cached_tokens or 0,
        tuple(output.prompt_token_ids),
    )


def prepare(engines: bool = False) -> None:
    """Import everything once, with one thread; called before the first fork.  engines: this is the
    other Python (elsewhere.py), which is started else."""
    os.environ.update(
        HF_HUB_OFFLINE="1",
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        OMP_NUM_THREADS="1",
        VLLM_LOGGING_LEVEL="WARNING",
        TOKENIZERS_PARALLELISM="false",
    )
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "0.25")
    from tests.zoo import elsewhere

    if not engines:
        elsewhere.start()
    import torch

    torch.set_num_threads(1)
    import transformers
    import vllm
    import vllm.entrypoints.llm
    import vllm.model_executor.models.llama
    import vllm.v1.engine.llm_engine

    _ = (transformers.AutoModelForCausalLM, vllm.LLM)
    from vllm.platforms import current_platform

    from cpu_backend import host
    from cpu_backend.worker import worker  # noqa: F401

    host.prepare_model()
    current_platform.register_triton_kernel_overrides()
    with contextlib.suppress(ModuleNotFoundError):  # before 0.31 the import has done it
        from vllm.config.logging import LoggingConfig
        from vllm.logger import configure_logging_if_needed

        configure_logging_if_needed(LoggingConfig())
    gc.freeze()  # a child's collections would copy every page of what was imported
