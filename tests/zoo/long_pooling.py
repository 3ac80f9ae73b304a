"""Models that embed or classify beside ``transformers`` in texts of thousands of tokens, up to the
last position: what ``python -m tests.zoo.long`` does with them."""

from __future__ import annotations

import dataclasses
import os
import random
from pathlib import Path

import torch

from tests.zoo import judge, pooling
from tests.zoo.build import build
from tests.zoo.pooling_specs import PoolingSpec
from tests.zoo.run import Prompt, forked
from tests.zoo.tokens import write_tokenizer

SECONDS = 1500  # for one engine, or all passes of transformers
DTYPES = ("float32", "bfloat16")
Vectors = list[torch.Tensor]


def longest(spec: PoolingSpec, tokens: int) -> PoolingSpec:
    """With positions for so many tokens and no more; RoBERTa's begin behind that of padding."""
    positions = tokens + (1 if "roberta" in spec.model_type else 0)
    return dataclasses.replace(spec, config={**spec.config, "max_position_embeddings": positions})


def texts(tokens: int) -> list[Prompt]:
    """One as long as may be, and others beside it."""
    draw = random.Random(20)
    lengths = (tokens, tokens // 2 + 1, 700, 5)
    return [tuple(draw.randrange(3, 1000) for _ in range(length)) for length in lengths]


def ask(folder: Path, spec: PoolingSpec, dtype: str, tokens: int) -> list[Vectors]:
    """All texts together, twice, and each alone."""
    from vllm import LLM

    [task] = pooling.TASKS[spec.auto]
    pooler = {"task": task, **({"seq_pooling_type": spec.pool} if task == "embed" else {})}
    llm = LLM(
        str(folder),
        runner="pooling",
        pooler_config=pooler,
        dtype=dtype,
        max_model_len=tokens,
        max_num_seqs=8,
        device="cpu",
    )
    asked = [{"prompt_token_ids": list(text)} for text in texts(tokens)]
    batches = [asked, asked, *([one] for one in asked)]
    results = [llm.encode(batch, pooling_task=task, use_tqdm=False) for batch in batches]
    return [[output.outputs.data.float() for output in outputs] for outputs in results]


def exact(folder: Path, spec: PoolingSpec, tokens: int) -> dict[str, Vectors]:
    """What ``transformers`` makes of each text, by dtype of the weights and the model."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    model = build(spec, folder)
    found = {"float32": [pooling.expected(model, spec, text, None) for text in texts(tokens)]}
    model.bfloat16()
    found["bfloat16"] = [pooling.expected(model, spec, text, None) for text in texts(tokens)]
    model.float()  # the rounded weights
    found["rounded"] = [pooling.expected(model, spec, text, None) for text in texts(tokens)]
    return found


def examine(spec: PoolingSpec, folder: Path, tokens: int) -> tuple[str, str]:
    """State and words; raises Failed where the engine or ``transformers`` ends."""
    spec = longest(spec, tokens)
    write_tokenizer(folder)
    right = forked(exact, folder, spec, tokens, seconds=SECONDS)
    found = {dtype: forked(ask, folder, spec, dtype, tokens, seconds=SECONDS) for dtype in DTYPES}
    faults = []
    for dtype, (together, again, *alone) in found.items():
        for way, others in (("again", again), ("alone", [one for [one] in alone])):
            if not all(torch.equal(a, b) for a, b in zip(together, others, strict=True)):
                faults.append(f"{dtype} {way}: other numbers")
    mine = found["float32"][0]
    worst = max(float((a - b).abs().max()) for a, b in zip(mine, right["float32"], strict=True))
    if not worst <= pooling.DIFFERENCE:
        faults.append("fp32")
    half, theirs = (
        _rms(vectors, right["rounded"]) for vectors in (found["bfloat16"][0], right["bfloat16"])
    )
    if not half <= judge.BF16_FACTOR * theirs:
        faults.append("bf16")
    words = f"fp32 {worst:.2g} off, bf16 {half:.2g} where transformers is {theirs:.2g}"
    return (judge.WRONG if faults else judge.RIGHT), "; ".join([words, *faults])


def _rms(found: Vectors, exact: Vectors) -> float:
    differences = [(a - b).flatten() for a, b in zip(found, exact, strict=True)]
    return float(torch.cat(differences).square().mean().sqrt())
