"""Speculative decoding changes how fast tokens come, never which: greedy fp32 tokens are those of
the same engine without it, and sampled ones have the same distribution.

The target is the demo model's first layers, which say nothing, but repeat themselves.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import drafts
from tests.e2e.even_heads import write_even_heads
from tests.features.offline import Offline

NEW_TOKENS = 12
LAYERS = 6
DRAFTS = 3
# Steps of 64 tokens: longer prompts come in chunks, beside requests that verify drafts.
OPTIONS: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 512,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "block_size": 16,
    "disable_log_stats": False,
}
NGRAM = {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4}


def prompts(vocabulary: int) -> list[list[int]]:
    """Of 3 to 150 tokens; two repeat a phrase."""
    generator = random.Random(3)
    phrases = [[generator.randrange(3, vocabulary) for _ in range(n)] for n in (3, 40, 150, 25, 7)]
    return [*phrases[:3], phrases[3] * 4 + phrases[3][:4], phrases[4] * 9]


@dataclass
class Answers:
    """Tokens of each prompt alone, together, and together from the prefix cache; of all the
    log-probabilities, and how many were drafted and accepted."""

    alone: list[list[int]]
    together: list[list[int]]
    again: list[list[int]]
    logprobs: list[float]
    drafted: float
    accepted: float

    @property
    def tokens(self) -> tuple[list[list[int]], ...]:
        return self.alone, self.together, self.again


def ask(engine: Offline, vocabulary: int, new_tokens: int = NEW_TOKENS) -> Answers:
    from vllm import SamplingParams

    common = {"max_tokens": new_tokens, "ignore_eos": True, "logprobs": 0}
    greedy = SamplingParams(temperature=0, **common)
    # Chooses the same tokens by way of draws, acceptance and recovery.
    sure = SamplingParams(temperature=0.8, top_k=1, **common)
    given = [{"prompt_token_ids": ids} for ids in prompts(vocabulary)]
    logprobs: list[float] = []

    def tokens(batch: list[dict[str, Any]], *sampling: SamplingParams) -> list[list[int]]:
        settings = [sampling[i % len(sampling)] for i in range(len(batch))]
        outputs = engine.generate(batch, settings, use_tqdm=False)
        answers = [output.outputs[0] for output in outputs]
        for answer in answers:
            steps = zip(answer.token_ids, answer.logprobs, strict=True)
            logprobs.extend(step[token].logprob for token, step in steps)
        return [list(answer.token_ids) for answer in answers]

    before = _counts(engine)
    engine.reset_prefix_cache()
    alone = [tokens([prompt], greedy)[0] for prompt in given]
    engine.reset_prefix_cache()
    answers = alone, tokens(given, greedy, sure), tokens(given, sure, greedy)
    drafted, accepted = (now - then for now, then in zip(_counts(engine), before, strict=True))
    return Answers(*answers, logprobs, drafted, accepted)


def ask_for_more(engine: Offline) -> list[tuple[list[int], list[float]]]:
    """Tokens and their log-probabilities of requests that change what is chosen from."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    greedy = {"temperature": 0, "max_tokens": NEW_TOKENS, "ignore_eos": True, "logprobs": 1}
    penalties = {"presence_penalty": 0.4, "frequency_penalty": 0.2, "repetition_penalty": 1.1}
    settings = [
        SamplingParams(**greedy),
        SamplingParams(**greedy, **penalties),
        SamplingParams(**greedy, structured_outputs=StructuredOutputsParams(regex="(ab|cd){20}")),
    ]
    repeating = prompts(49000)[-2]
    batch = [{"prompt_token_ids": repeating} for _ in settings]
    found = []
    for output in engine.generate(batch, settings, use_tqdm=False):
        completion = output.outputs[0]
        tokens = list(completion.token_ids)
        steps = zip(tokens, completion.logprobs, strict=True)
        found.append((tokens, [step[token].logprob for token, step in steps]))
    return found


def _counts(engine: Offline) -> tuple[float, float]:
    counted = {metric.name: getattr(metric, "value", 0) for metric in engine.get_metrics()}
    names = ("num_draft_tokens", "num_accepted_tokens")
    drafted, accepted = (counted.get(f"vllm:spec_decode_{name}", 0) for name in names)
    return drafted, accepted


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drafts")


@pytest.fixture(scope="module")
def target(model_path: str, folder: Path) -> str:
    return str(drafts.write_first_layers(Path(model_path), folder / "target", LAYERS))


@pytest.fixture(scope="module")
def engine(target: str) -> Iterator[Offline]:
    """Without speculation; the tests start others in its place."""
    with Offline(target, **OPTIONS) as running:
        yield running


@pytest.fixture(scope="module")
def more(engine: Offline) -> list[tuple[list[int], list[float]]]:
    """Asked before any other engine takes the place of the first."""
    return ask_for_more(engine)


@pytest.fixture(scope="module")
def expected(engine: Offline, more: list[Any]) -> list[list[int]]:
    assert more
    answers = ask(engine, 49000)
    assert answers.alone == answers.together == answers.again
    assert answers.drafted == 0
    return answers.alone


def restart(engine: Offline, target: str, speculative: dict[str, Any], **options: Any) -> None:
    speculative = {"num_speculative_tokens": DRAFTS} | speculative
    engine.start(target, speculative_config=speculative, **OPTIONS | options)


SUFFIX = pytest.param("suffix", marks=pytest.mark.needs("arctic-inference"))


@pytest.mark.parametrize("kind", ["half of it", "eagle3", "itself", "eagle", "ngram", SUFFIX])
def test_greedy_tokens_are_those_without_it(
    kind: str,
    engine: Offline,
    target: str,
    expected: list[list[int]],
    more: list[tuple[list[int], list[float]]],
    folder: Path,
) -> None:
    source = Path(target)
    speculative: dict[str, Any]
    if kind == "ngram":
        speculative = NGRAM
    elif kind == "suffix":
        speculative = {"method": "suffix"}
    elif kind == "itself":
        speculative = {"method": "draft_model", "model": target}
    elif kind == "half of it":
        half = drafts.write_first_layers(source, folder / "half", LAYERS // 2)
        speculative = {
            "method": "draft_model",
            "model": str(half),
            "draft_sample_method": "probabilistic",
        }
    else:
        head = drafts.write_head(source, folder / kind, kind)
        speculative = {"method": kind, "model": str(head)}
    restart(engine, target, speculative)
    answers = ask(engine, 49000)
    for tokens in answers.tokens:
        assert tokens == expected
    assert answers.drafted > (5 if kind == "suffix" else 40)
    share = answers.accepted / answers.drafted
    # A draft model that is the target is always right, or it has read the wrong tokens.
    bounds = {
        "ngram": (0.5, 1),
        "suffix": (0.5, 1),
        "itself": (0.97, 1),
        "half of it": (0.05, 0.95),
    }
    least, most = bounds.get(kind, (0, 0.5))
    assert least <= share <= most, share
    if kind in ("ngram", "itself"):
        for (tokens, logprobs), other in zip(ask_for_more(engine), more, strict=True):
            assert tokens == other[0]
            assert logprobs == pytest.approx(other[1], abs=1e-4)


def test_a_head_of_the_models_own(engine: Offline, folder: Path) -> None:
    model = str(drafts.write_with_own_head(folder / "ernie"))
    options = OPTIONS | {"skip_tokenizer_init": True}
    engine.start(model, **options)
    expected = ask(engine, 1000).alone
    restart(engine, model, {"method": "mtp", "num_speculative_tokens": 1}, skip_tokenizer_init=True)
    answers = ask(engine, 1000)
    for tokens in answers.tokens:
        assert tokens == expected
    assert answers.drafted > 40


def test_two_ranks(
    engine: Offline, model_path: str, expected: list[list[int]], folder: Path
) -> None:
    write_even_heads(Path(model_path), folder / "even", LAYERS)
    restart(engine, str(folder / "even"), NGRAM, tensor_parallel_size=2)
    answers = ask(engine, 49000)
    for tokens in answers.tokens:
        assert tokens == expected
    assert answers.accepted > 20
