"""Text: prompts alone, together, in chunks and from the prefix cache; recorded and eager."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.zoo import judge
from tests.zoo.build import Spec, build
from tests.zoo.elsewhere import run_engine
from tests.zoo.judge import HOST, RIGHT, WRONG, Outcome
from tests.zoo.run import SLOWER, Answer, Failed, Prompt, Round, generate
from tests.zoo.text_specs import SPECS

__all__ = ["SPECS", "examine"]

WHOLE = ("alone", "together", "recorded", "eager")
COMPARED = (*WHOLE, "chunks", "prefix cache")
EMULATED = SLOWER > 1  # a third of the rounds and one engine less then
LENGTHS = (5, 40, 300, 17, 64, 129)  # beyond the specs' windows (48) and the small chunk
NEW_TOKENS = 12  # a step is recorded, checked, and only then replayed
GREEDY = (("max_tokens", NEW_TOKENS), ("logprobs", 3))
SCORED = (("max_tokens", 1), ("prompt_logprobs", 1))

COMMON = {"max_model_len": 512, "max_num_seqs": 16, "seed": 0, "gpu_memory_utilization": 0.5}
CHUNKED = {"max_num_batched_tokens": 64, **COMMON}
ENGINES: dict[str, dict[str, Any]] = {
    "eager": {"dtype": "float32", "enforce_eager": True, "max_num_batched_tokens": 1024, **COMMON},
    "recorded": {"dtype": "float32", **CHUNKED},
    "bf16": {"dtype": "bfloat16", **CHUNKED},
}
if EMULATED:
    del ENGINES["eager"]
FP32 = tuple(name for name in ENGINES if name != "bf16")


def registered() -> list[str]:
    """The names of the host's classes for text."""
    from vllm.model_executor.models import registry

    models = {**registry._TEXT_GENERATION_MODELS, **registry._TRANSFORMERS_SUPPORTED_MODELS}
    return [name for name, (_, cls) in models.items() if "MultiModal" not in cls]


def prompts() -> list[Prompt]:
    """Random tokens of LENGTHS, the same in every run."""
    generator = random.Random(20)
    return [tuple(generator.randrange(3, 1000) for _ in range(n)) for n in LENGTHS]


def rounds(p: Sequence[Any]) -> list[Round]:
    """Six requests in different numbers and lengths, each several times: what memory a step reuses
    depends on the steps before it."""
    one, three, six, two = [[x] for x in p[:3]], [p[:3]], [p], [[p[4], p[1]]]
    sent = [*one, *three, *six, *two, *three, *six, *two, *one, *six, *three, *two, *one]
    return [Round(tuple(asked), GREEDY) for asked in sent[: len(sent) // 3 if EMULATED else None]]


def examine(
    spec: Spec, folder: Path, served: Callable[[], tuple[Path, dict[str, Any]]] | None = None
) -> Outcome:
    """Build the model, run every engine, compare.  Runs in a process of its own.

    served: makes what engines are given instead of ``folder``, and options of theirs.
    """
    if spec.refused:
        return judge.refusal(spec, folder, generate, ENGINES["recorded"], [])
    model = build(spec, folder)
    scored = [Round((prompt,), SCORED) for prompt in prompts()[:3]]
    path, extra = served() if served else (folder, {})
    try:
        answers = {
            name: run_engine(generate, path, options | extra, rounds(prompts()) + scored)
            for name, options in ENGINES.items()
        }
    except Failed as failed:
        return judge.failure(failed, spec.host, spec.note)
    return _judge(spec, model, answers)


def _judge(spec: Spec, model: Any, answers: dict[str, list[list[Answer]]]) -> Outcome:
    sent = rounds(prompts())
    asked = len(sent)
    greedy = {name: by_round[:asked] for name, by_round in answers.items()}
    scored = {
        name: {p: found[0] for p, found in zip(prompts(), by_round[asked:], strict=False)}
        for name, by_round in answers.items()
    }
    faults = judge.differences(sent, greedy, cached=spec.cached)
    faults += _token_faults(model, greedy[FP32[0]])
    compared = WHOLE if spec.whole_prompts else COMPARED[:-1] if spec.uncached else COMPARED
    for name in FP32:
        error = judge.worst_error(model, scored[name])
        if not error < judge.FP32_ERROR:
            faults.append(f"{name}: log-probabilities of a prompt are {error:.3f} deviations off")
    ours, theirs = judge.bf16_errors(model, scored["bf16"])
    if not ours <= judge.BF16_FACTOR * theirs:
        faults.append(f"bf16: error {ours:.3g}, transformers' {theirs:.3g}")
    if not faults:
        return Outcome(RIGHT, spec.note, ("fp32", "bf16"), compared)
    return Outcome(HOST if spec.host else WRONG, "; ".join(faults), ("fp32", "bf16"), compared)


def _token_faults(model: Any, by_round: list[list[Answer]]) -> list[str]:
    """Tokens that transformers would not choose; a text that does not depend on the prompt
    proves nothing."""
    answers = {
        prompt: answer
        for asked, found in zip(rounds(prompts()), by_round, strict=True)
        for prompt, answer in zip(asked.prompts, found, strict=True)
    }
    faults = []
    if 2 * len({answer.tokens for answer in answers.values()}) < len(answers):
        faults.append("prompts have the same answer: the small model is no good test")
    gaps = {len(p): float(judge.gaps(model, p, a.tokens).max()) for p, a in answers.items()}
    worst = max(gaps, key=lambda n: gaps[n])
    if not gaps[worst] < judge.TIE:
        faults.append(f"{worst} tokens alone: a token {gaps[worst]:.2f} deviations below the best")
    return faults
