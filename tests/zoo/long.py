"""``python -m tests.zoo.long``: models beside ``transformers`` in requests of tens of thousands of
tokens; those that embed or classify in ``long_pooling.py``.

What the other tables ask ends at some hundreds.  A request takes minutes here, and a mask of
``transformers`` gigabytes, so a command of its own.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import tempfile
from pathlib import Path
from typing import Any

import torch

from tests.zoo import judge, kinds, long_pooling, run
from tests.zoo.build import Spec, build
from tests.zoo.pooling_specs import PoolingSpec
from tests.zoo.run import Answer, Failed, Prompt, Round, forked, generate

SECONDS = 1500  # for one engine, or one pass of transformers
LAST = 1000  # tokens of a prompt whose log-probabilities are compared
PART = 2000  # tokens that transformers reads at once
NEW_TOKENS = 12
GREEDY = (("max_tokens", NEW_TOKENS), ("logprobs", 3))
SCORED = (("max_tokens", 1), ("prompt_logprobs", 1))


def longer(spec: Spec, tokens: int) -> Spec:
    """With positions for so many tokens, stretched by YaRN and the like as before."""

    def stretched(config: dict[str, Any]) -> dict[str, Any]:
        config = {
            name: stretched(value) if isinstance(value, dict) else value
            for name, value in config.items()
        }
        if "original_max_position_embeddings" in config:
            config["original_max_position_embeddings"] = int(2 * tokens / config["factor"])
        return config

    positions = {"max_position_embeddings": 2 * tokens}
    return dataclasses.replace(spec, config={**stretched(spec.config), **positions})


def prompt(tokens: int) -> Prompt:
    draw = random.Random(20)
    return tuple(draw.randrange(3, 1000) for _ in range(tokens))


def ask(folder: Path, dtype: str, tokens: int) -> list[list[Answer]]:
    """The long prompt scored, continued alone (twice: from the prefix cache) and beside others."""
    options = {
        "dtype": dtype,
        "max_model_len": tokens + 64,
        "max_num_batched_tokens": 2048,
        "max_num_seqs": 8,
        "device": "cpu",
    }
    long, other, short = prompt(tokens), prompt(tokens)[::-1], prompt(70)
    rounds = [Round((long,), SCORED), *[Round((long,), GREEDY)] * 2]
    rounds += [Round((short, long, other), GREEDY)] * 2
    return generate(folder, options, rounds)


@torch.no_grad()
def exact(folder: Path, spec: Spec, tokens: int, chosen: tuple[int, ...]) -> Any:
    """Log-probabilities of the prompt's last tokens, the deviations of their logits, and how far
    each of the ``chosen`` tokens lies below the best."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    model = build(spec, folder)
    logits = _logits(model, torch.tensor([[*prompt(tokens), *chosen]]))[-LAST - len(chosen) :]
    after, scored = logits[LAST - 1 : -1], logits[: LAST - 1]
    own = after.gather(1, torch.tensor(chosen)[:, None])[:, 0]
    gaps = (after.max(1).values - own) / after.std(1)
    following = torch.tensor(prompt(tokens)[1 - LAST :])[:, None]
    return scored.log_softmax(-1).gather(1, following)[:, 0], scored.std(1), gaps


def _logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Of the last tokens at least, [tokens, vocabulary]: in parts where no state is kept but the
    cache, as a mask of all tokens by all takes gigabytes."""
    if getattr(model, "_is_stateful", False):
        result: torch.Tensor = model(ids, use_cache=False).logits[0].float()
        return result
    parts, cache = [], None
    for part in ids.split(PART, 1):
        output = model(part, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        parts = [*parts[-1:], output.logits[0].float()]
    return torch.cat(parts)


def examine(name: str, tokens: int) -> tuple[str, str]:
    """State and words of one architecture."""
    _, spec = kinds.find(name)
    judged = long_pooling.examine if isinstance(spec, PoolingSpec) else _generating
    with tempfile.TemporaryDirectory() as place:
        try:
            return judged(spec, Path(place), tokens)
        except Failed as failed:
            outcome = judge.failure(failed, spec.host, spec.note)
            return outcome.state, outcome.note


def _generating(spec: Spec, folder: Path, tokens: int) -> tuple[str, str]:
    spec = longer(spec, tokens)
    forked(build, spec, folder)
    answers = {
        dtype: forked(ask, folder, dtype, tokens, seconds=SECONDS)
        for dtype in ("float32", "bfloat16")
    }
    _, [alone], [again], [_, beside, _], [_, repeated, _] = answers["float32"]
    try:
        logprobs, deviations, gaps = forked(
            exact, folder, spec, tokens, alone.tokens, seconds=SECONDS
        )
    except Failed as failed:
        return "not compared", str(failed)[:300]
    errors = {
        dtype: (torch.tensor(found[0][0].prompt_logprobs[1 - LAST :]) - logprobs).abs() / deviations
        for dtype, found in answers.items()
    }
    faults = [
        f"{way}: {words}"
        for way, other in {"again": again, "beside": beside, "repeated": repeated}.items()
        if (words := judge.difference(alone, other))
    ]
    worst, gap = float(errors["float32"].max()), float(gaps.max())
    if not worst < judge.TIE:
        faults.append("log-probabilities")
    if not gap < judge.TIE:
        faults.append("tokens")
    half = float(errors["bfloat16"].square().mean().sqrt())
    words = f"fp32 {worst:.2g}, tokens {gap:.2g}, bf16 {half:.2g} deviations off"
    return (judge.WRONG if faults else judge.RIGHT), "; ".join([words, *faults])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.zoo.long", description=__doc__)
    parser.add_argument("names", nargs="+", help="architectures of models of text")
    parser.add_argument("--tokens", type=int, default=40_000)
    arguments = parser.parse_args()
    run.prepare()
    wrong = 0
    for name in arguments.names:
        state, words = examine(name, arguments.tokens)
        print(json.dumps([name, state, words]), flush=True)
        wrong += state in {judge.WRONG, judge.ENDED}
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
