"""How answers are judged: against ``transformers`` in fp32, and bit for bit against each other."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.zoo.build import Spec, write_config
from tests.zoo.elsewhere import run_engine
from tests.zoo.run import Answer, Failed, Prompt, Round

# Of a prompt's log-probabilities in fp32, in standard deviations of the logits: 1e-5 with all but
# ten models, the most, 0.008, with Qianfan-OCR, where an image is scaled.
FP32_ERROR = 0.01
TIE = 0.02  # standard deviations of the logits below the best: a choice that rounding made
# What rounding a weight or an activation to it costs, relative to its size: root of mean squares,
# for normally distributed values and the groups in use.
QUANTIZATIONS = {"": 0.0, "cpu_int8": 0.007, "cpu_int4": 0.09}
DRAWS = 5  # of noise, the worst counts: a router may or may not choose another expert
# Share of the tokens that do not count: at some of them rounding chooses other experts, in mixtures
# at more, because the next ones read what those have become.
WITHOUT, WITHOUT_OF_MIXTURES = 0.02, 0.05
BF16_FACTOR = 2.0  # our error in bf16 may be so many times that of transformers in bf16
RIGHT, REFUSED, HOST, WRONG, ENDED = "right", "refused", "host", "wrong", "ended"


@dataclass(frozen=True)
class Outcome:
    """A row: state, the dtypes and ways that were compared, and what there is to say.

    ``wrong`` and ``ended`` are no outcomes that an architecture may have; their notes say what
    was seen.
    """

    state: str
    note: str = ""
    dtypes: tuple[str, ...] = ()
    compared: tuple[str, ...] = ()
    where: str = ""  # a trace, for whoever looks for the cause


def failure(failed: Failed, host: str = "", note: str = "") -> Outcome:
    """What an engine's end means: refused in one sentence of this backend, known of the host
    (``host``, a pattern of what it says), or a defect."""
    said = f"{failed.kind}: {failed.message}"
    words = said.splitlines()[0][:300]
    if host and re.search(host, f"{said}\n{failed.where}"):
        return Outcome(HOST, f"{note}: {words}" if note else words, where=failed.where)
    if failed.kind == "ConfigError" and is_sentence(failed.message):
        return Outcome(REFUSED, failed.message)
    return Outcome(ENDED, words, where=failed.where)


def refusal(spec: Spec, folder: Path, task: Callable[..., Any], *args: Any) -> Outcome:
    """What ``task(folder, *args)`` comes to with a checkpoint that has none of the model's weights:
    refused before they are read, or a defect."""
    write_config(spec, folder)
    try:
        run_engine(task, folder, *args)
    except Failed as failed:
        return failure(failed, spec.host, spec.note)
    return Outcome(ENDED, "started without its weights")


def is_sentence(message: str) -> bool:
    """One line, one full stop at its end."""
    return re.fullmatch(r"[^\n]+[^.\s]\.", message) is not None and ". " not in message


def _logits(model: Any, prompt: Prompt, answer: Iterable[int] = ()) -> torch.Tensor:
    """[tokens, vocabulary] after each token of the prompt and the answer; a model that reads
    prompts in both directions is told which tokens are the prompt's."""
    ids = [*prompt, *answer]
    kinds = torch.tensor([[1] * len(prompt) + [0] * (len(ids) - len(prompt))])
    told = {"token_type_ids": kinds} if getattr(model.config, "prefix_lm", False) else {}
    logits: torch.Tensor = model(torch.tensor([ids]), **told).logits[0].float()
    return logits


@torch.no_grad()
def gaps(model: Any, prompt: Prompt, tokens: Iterable[int]) -> torch.Tensor:
    """How far each chosen token's logit lies below the best, in standard deviations of the logits
    that ``model`` gives after the prompt and the tokens before it."""
    chosen = torch.tensor(list(tokens))
    logits = _logits(model, prompt, chosen.tolist())[len(prompt) - 1 : -1]
    own = logits.gather(1, chosen[:, None])[:, 0]
    result: torch.Tensor = (logits.max(1).values - own) / logits.std(1)
    return result


@torch.no_grad()
def prompt_logprobs(model: Any, prompt: Prompt) -> torch.Tensor:
    """Log-probabilities [len(prompt) - 1] of the prompt's tokens from the second on."""
    return _own(_logits(model, prompt)[:-1], prompt)


def _own(logits: torch.Tensor, prompt: Prompt) -> torch.Tensor:
    """Log-probabilities of the tokens from the second on; minus infinity where one has no logit."""
    tokens = torch.tensor(prompt)[1:]
    there = tokens < logits.shape[-1]
    found = logits.log_softmax(-1).gather(1, (tokens * there)[:, None])[:, 0]
    return found.where(there, -math.inf)


def _apart(some: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Their differences, none between two infinities."""
    return (some - others).where(some != others, 0.0)


@torch.no_grad()
def worst_error(model: Any, answers: dict[Prompt, Answer]) -> float:
    """The largest error of a prompt's log-probabilities, in standard deviations of its logits;
    infinite where one is no number."""
    worst = 0.0
    for prompt, answer in answers.items():
        logits = _logits(model, prompt)[:-1]
        error = _apart(torch.tensor(answer.prompt_logprobs), _own(logits, prompt)).abs()
        error /= logits.std(1)
        worst = max(worst, float(error.nan_to_num(math.inf).max()))
    return worst


def bf16_errors(model: Any, answers: dict[Prompt, Answer]) -> tuple[float, float]:
    """The errors (root of mean squares over all but the worst tokens of the prompts) of ``answers``
    and of ``transformers``, both in bf16, against fp32 on the same rounded weights."""
    half = copy.deepcopy(model).bfloat16()
    for name, parameter in model.named_parameters():
        parameter.data = half.get_parameter(name).data.float()
    exact = torch.cat([prompt_logprobs(model, prompt) for prompt in answers])
    theirs = torch.cat([prompt_logprobs(half, prompt) for prompt in answers])
    ours = torch.tensor([value for answer in answers.values() for value in answer.prompt_logprobs])
    without = left_out(model)
    return rms(_apart(ours, exact), without), rms(_apart(theirs, exact), without)


def left_out(model: torch.nn.Module) -> float:
    """The share of its tokens that does not count."""
    mixture = any("expert" in name for name, _ in model.named_parameters())
    return WITHOUT_OF_MIXTURES if mixture else WITHOUT


def rms(errors: torch.Tensor, without: float) -> float:
    """Without the largest share, one token at least but never all: where two experts are nearly
    equal, rounding chooses, and one such token weighs more than all others."""
    if not errors.isfinite().all():
        return math.inf
    kept = max(1, math.floor((1 - without) * len(errors)))
    return float(errors.square().sort().values[:kept].mean().sqrt())


def difference(first: Answer, second: Answer) -> str:
    """How two answers to one prompt differ, in any bit; empty if they do not."""
    for step, (a, b) in enumerate(zip(first.tokens, second.tokens, strict=True)):
        if a != b:
            return f"token {step} is {b}, not {a}"
        if first.logprobs[step] != second.logprobs[step]:
            return f"the log-probabilities of token {step} differ"
    return ""


def differences(
    sent: list[Round], answers: dict[str, list[list[Answer]]], cached: bool = True
) -> list[str]:
    """Where answers to one prompt in one dtype differ in any bit: one line per engine; ``cached``:
    some have to come from the prefix cache."""
    faults = []
    first: dict[tuple[bool, Any], Answer] = {}
    for engine, by_round in answers.items():
        found = []
        for number, asked in enumerate(sent):
            for prompt, answer in zip(asked.prompts, by_round[number], strict=True):
                expected = first.setdefault((engine == "bf16", prompt), answer)
                different = difference(expected, answer)
                if different:
                    among = len(asked.prompts)
                    found.append(
                        f"{engine}, round {number}, {len(prompt)} tokens among {among}: {different}"
                    )
        if found:
            faults.append(f"{found[0]} ({len(found)} such answers)")
    if cached and not any(answer.cached for asked in answers["recorded"] for answer in asked):
        faults.append("nothing came from the prefix cache")
    return faults


@torch.no_grad()
def with_noise(model: torch.nn.Module, noise: float, seed: int) -> torch.nn.Module:
    """A copy each of whose matrices, but embeddings, is off by ``noise`` of its size: what rounding
    has to cost this model."""
    noisy = copy.deepcopy(model)
    tables = {
        id(parameter)
        for module in noisy.modules()
        if isinstance(module, torch.nn.Embedding)
        for parameter in module.parameters(recurse=False)
    }
    torch.manual_seed(seed)
    for parameter in noisy.parameters():
        if parameter.dim() >= 2 and id(parameter) not in tables:
            size = parameter.square().mean().sqrt()
            parameter.add_(torch.randn_like(parameter) * size, alpha=noise)
    return noisy
