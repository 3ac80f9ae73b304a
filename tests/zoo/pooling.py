"""Embeddings, classes and scores: each prompt alone and with others, in fp32, in bf16 and with
weights that become 8-bit integers while they load."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from tests import tools
from tests.zoo import judge, pooling_specs, qwen_pooling_specs, renamed_pooling_specs
from tests.zoo.build import build
from tests.zoo.elsewhere import run_engine
from tests.zoo.judge import HOST, REFUSED, RIGHT, WRONG, Outcome
from tests.zoo.media import Case
from tests.zoo.pooling_specs import SEQUENCE, TOKEN, PoolingSpec
from tests.zoo.run import Failed, Prompt, check_media, request
from tests.zoo.text import COMMON, EMULATED
from tests.zoo.tokens import write_tokenizer

__all__ = ["SPECS", "examine"]

SPECS = tuple(
    sorted(
        (*pooling_specs.SPECS, *renamed_pooling_specs.SPECS, *qwen_pooling_specs.SPECS),
        key=lambda spec: spec.name,
    )
)
COMPARED = ("alone", "together")
INT8 = "cpu_int8"
# By the class that makes the model; the answer is all of them, one after the other.
TASKS = {
    "AutoModel": ("embed",),
    "Lfm2Bidirectional": ("embed",),
    SEQUENCE: ("classify",),
    "Qwen3RerankerForSequenceClassification": ("classify",),
    TOKEN: ("token_classify",),
    "Qwen2RewardModel": ("token_classify",),
    "LlamaRewardModel": ("token_classify",),
    "ColBert": ("token_embed",),
    "ModernColBert": ("token_embed",),
    "ModernVColBert": ("token_embed",),
    "ColPaliForRetrieval": ("token_embed",),
    "ColQwen3": ("token_embed",),
    "ColQwen3_5": ("token_embed",),
    "Qwen3VLTokens": ("token_embed",),
    "JinaVLForSequenceClassification": ("classify",),
    "LlamaNemotronVLEmbed": ("embed",),
    "LlamaNemotronVLForSequenceClassification": ("classify",),
    "JinaColBert": ("token_embed",),
    "Lfm2ColBert": ("token_embed",),
    "JinaRanking": ("token_embed",),
    "BgeM3": ("embed", "token_classify", "embed&token_classify", "token_embed"),
    "Splade": ("embed",),
    "VoyageEmbedding": ("embed",),
    "NewGte": ("embed",),
    "NewGteForSequenceClassification": ("classify",),
}
# Around a page of 128 tokens, beyond the windows, one token alone.
LENGTHS = (5, 40, 200, 1, 17, 128, 129, 384, 127, 2, 64, 33, 7, 100, 31, 256)
# Requests at once, through all prompts, one size after the other.
SIZES = (1, 16) if EMULATED else (1, 16, 2, 5, 16, 3, 1)
SIMILARITY, DIFFERENCE = (
    0.9999,
    1e-5,
)  # cosine; the largest of one number, of unit vectors and probabilities
Asked = Prompt | Case


def registered() -> list[str]:
    """The names of the host's classes that only pool."""
    from vllm.model_executor.models import registry

    return [
        *(name for name in registry._EMBEDDING_MODELS if "For" not in name),
        *registry._LATE_INTERACTION_MODELS,
        *registry._REWARD_MODELS,
        *registry._TOKEN_CLASSIFICATION_MODELS,
        *registry._SEQUENCE_CLASSIFICATION_MODELS,
    ]


def prompts(spec: PoolingSpec) -> list[Asked]:
    """Random tokens of LENGTHS, the same in every run, and the Spec's cases between them."""
    generator = random.Random(20)
    least = 20 if spec.processor else 3  # below are tokens that stand for pictures
    texts = [tuple(generator.randrange(least, 1000) for _ in range(n)) for n in LENGTHS]
    if spec.begin is not None:
        texts = [(spec.begin, *text[1:]) for text in texts]
    if spec.end is not None:
        texts = [(*text[:-1], spec.end) for text in texts]
    if spec.second is not None:
        texts = [(text[0], spec.second, *text[2:]) for text in texts]
    asked: list[Asked] = [*texts]
    for number, case in enumerate(spec.cases):
        asked.insert(4 * number, case)
    return asked


def batches(spec: PoolingSpec) -> list[list[Asked]]:
    """What is sent at once."""
    asked = prompts(spec)
    return [asked[i : i + size] for size in SIZES for i in range(0, len(asked), size)]


def pool(
    folder: Path,
    spec: PoolingSpec,
    task: str,
    dtype: str,
    quantization: str | None = None,
    ranks: Mapping[str, Any] = MappingProxyType({}),
) -> list[list[torch.Tensor]]:
    """Make an engine for the checkpoint in ``folder`` and send it the batches; ranks: the options
    that cut the model."""
    from vllm import LLM
    from vllm.entrypoints.pooling.embed.io_processor import TokenEmbedIOProcessor

    options: dict[str, Any] = {"dtype": dtype, "quantization": quantization, **ranks}
    if spec.cases:
        images = max(len(case.media) for case in spec.cases)
        options["limit_mm_per_prompt"] = {"image": images, "audio": 1, "video": 1}
    pooler = {"task": task}
    if task == "embed":
        pooler["seq_pooling_type"] = spec.pool
    elif spec.pool == "STEP":
        pooler["step_tag_id"] = spec.end
    llm = LLM(str(folder), runner="pooling", pooler_config=pooler, **COMMON, **options)
    if spec.auto == "JinaRanking":  # its own would write a long text around what it is given
        llm.pooling_io_processors[task].__class__ = TokenEmbedIOProcessor
    results = []
    for batch in batches(spec):
        asked = [request(prompt) for prompt in batch]
        outputs = llm.encode(asked, pooling_task=task, use_tqdm=False)
        results.append([output.outputs.data.float() for output in outputs])
    if spec.cases:
        check_media(llm, spec.media)
    return results


def answers(folder: Path, spec: PoolingSpec, *options: Any) -> list[list[torch.Tensor]]:
    """What engines make of the batches, one for each task; of several, one row of numbers."""
    by_task = [run_engine(pool, folder, spec, task, *options) for task in TASKS[spec.auto]]
    if len(by_task) == 1:
        return by_task[0]  # type: ignore[no-any-return]
    return [
        [torch.cat([part.flatten() for part in parts]) for parts in zip(*batch, strict=True)]
        for batch in zip(*by_task, strict=True)
    ]


@torch.no_grad()
def expected(model: Any, spec: PoolingSpec, prompt: Asked, processor: Any) -> torch.Tensor:
    """What ``transformers`` makes of the prompt, in fp32 from the model's last step on."""
    if hasattr(model, "get_text_features"):
        return _of_two_encoders(model, prompt, processor)
    result = model(**_inputs(model, spec, prompt, processor))
    if spec.pool == "STEP":
        steps: torch.Tensor = result.logits[0, torch.tensor(prompt) == spec.end]
        return steps
    if "ForSequenceClassification" in spec.auto or "ForTokenClassification" in spec.auto:
        logits = result.logits[0].float()
        return logits.sigmoid() if logits.shape[-1] == 1 else logits.softmax(-1)
    if "embeddings" in result:
        return result.embeddings[0]  # type: ignore[no-any-return]
    if "last_hidden_state" not in result:
        return result.logits[0]  # type: ignore[no-any-return]
    states = result.last_hidden_state[0].float()
    pooled = {"CLS": states[0], "LAST": states[-1], "MEAN": states.mean(0)}[spec.pool]
    return torch.nn.functional.normalize(pooled, dim=-1)


def _inputs(
    model: Any, spec: PoolingSpec, prompt: Asked, processor: Any
) -> dict[str, torch.Tensor]:
    if isinstance(prompt, tuple):
        ids = torch.tensor([prompt])
        told = {"token_type_ids": torch.zeros_like(ids)} if spec.whole_prompts else {}
        return {"input_ids": ids, **told}
    return {
        name: value.to(model.dtype) if value.is_floating_point() else value
        for name, value in prompt.inputs(processor).items()
    }


def _of_two_encoders(model: Any, prompt: Asked, processor: Any) -> torch.Tensor:
    """Of a model that has one for texts and one for pictures."""
    if isinstance(prompt, tuple):
        found = model.get_text_features(torch.tensor([prompt]))
    else:
        picture = prompt.media[0].make()
        pixels = processor.image_processor(picture, return_tensors="pt").pixel_values
        found = model.get_image_features(pixels.to(model.dtype))
    return torch.nn.functional.normalize(found.pooler_output[0].float(), dim=-1)


def examine(spec: PoolingSpec, folder: Path) -> Outcome:
    """Build the model, run it in every format, compare.  Runs in a process of its own."""
    if missing := [tools.sentence(need) for need in spec.needs if not tools.is_there(need)]:
        return Outcome(REFUSED, "; ".join(missing))
    processor = (spec.processor or write_tokenizer)(folder)
    if spec.refused:
        return judge.refusal(spec, folder, pool, spec, *TASKS[spec.auto], "float32")
    model = build(spec, folder)
    try:
        found = {dtype: answers(folder, spec, dtype) for dtype in ("float32", "bfloat16")}
        found[INT8] = answers(folder, spec, "float32", INT8)
    except Failed as failed:
        return judge.failure(failed, spec.host, spec.note)
    faults = [
        *differences(spec, found),
        *wrong_numbers(model, spec, processor, found["float32"]),
        *rounding_faults(model, spec, processor, found[INT8], judge.QUANTIZATIONS[INT8], INT8),
        *bf16_faults(model, spec, processor, found["bfloat16"]),
    ]
    state = RIGHT if not faults else HOST if spec.host else WRONG
    return Outcome(state, "; ".join(faults) or spec.note, ("fp32", "bf16", INT8), COMPARED)


def differences(spec: PoolingSpec, by_dtype: dict[str, list[list[torch.Tensor]]]) -> list[str]:
    """Where a prompt's answers in one dtype are not the same in every bit: one line per dtype."""
    faults = []
    for dtype, by_batch in by_dtype.items():
        first: dict[Asked, torch.Tensor] = {}
        found = []
        for batch, results in zip(batches(spec), by_batch, strict=True):
            for prompt, result in zip(batch, results, strict=True):
                if not torch.equal(first.setdefault(prompt, result), result):
                    found.append(f"{dtype}: {len(prompt)} tokens among {len(batch)} differ")
        if found:
            faults.append(f"{found[0]} ({len(found)} such answers)")
    return faults


def wrong_numbers(
    model: Any, spec: PoolingSpec, processor: Any, ours: list[list[torch.Tensor]]
) -> list[str]:
    """Answers to prompts alone (the first batches) that transformers would not give."""
    faults = []
    theirs = [expected(model, spec, prompt, processor) for prompt in prompts(spec)]
    same = (a.shape == b.shape and torch.allclose(a, b, atol=1e-3) for a, b in pairwise(theirs))
    if any(same):
        faults.append("two prompts have the same answer: the small model is no good test")
    for prompt, (mine,), right in zip(prompts(spec), ours, theirs, strict=False):
        difference = float((mine - right).abs().max())
        similarity = float(torch.cosine_similarity(mine.flatten(), right.flatten(), dim=0))
        if not (similarity >= SIMILARITY and difference <= DIFFERENCE):
            faults.append(f"{len(prompt)} tokens: cosine {similarity:.5f}, off by {difference:.1e}")
    return faults[:1]


def rounding_faults(
    model: Any,
    spec: PoolingSpec,
    processor: Any,
    ours: list[list[torch.Tensor]],
    size: float,
    name: str,
) -> list[str]:
    """Whether the error is more than twice what noise of that size costs."""
    asked = prompts(spec)
    exact = [expected(model, spec, prompt, processor) for prompt in asked]
    mine = _rms([results[0] for results in ours[: len(exact)]], exact)
    allowed = 0.0
    for draw in range(judge.DRAWS):
        noisy = judge.with_noise(model, size, draw)
        cost = _rms([expected(noisy, spec, prompt, processor) for prompt in asked], exact)
        allowed = max(allowed, 2.0 * cost)
        if mine <= allowed:
            return []
    return [f"{name}: error {mine:.3g}, noise of that size costs {allowed / 2.0:.3g}"]


def bf16_faults(
    model: Any, spec: PoolingSpec, processor: Any, ours: list[list[torch.Tensor]]
) -> list[str]:
    """Whether the error in bf16 is more than twice that of transformers; both against fp32 on the
    rounded weights."""
    half = copy.deepcopy(model).bfloat16()
    for name, parameter in model.named_parameters():
        parameter.data = half.get_parameter(name).data.float()
    exact = [expected(model, spec, prompt, processor) for prompt in prompts(spec)]
    theirs = [expected(half, spec, prompt, processor) for prompt in prompts(spec)]
    alone = [results[0] for results in ours[: len(exact)]]
    mine, reference = (_rms(found, exact) for found in (alone, theirs))
    if mine <= judge.BF16_FACTOR * reference:
        return []
    return [f"bf16: error {mine:.3g}, transformers' {reference:.3g}"]


def _rms(found: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    differences = [(a - b).flatten() for a, b in zip(found, exact, strict=True)]
    return float(torch.cat(differences).square().mean().sqrt())
