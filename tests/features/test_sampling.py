"""Parameters of a request, one engine, against transformers and against each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.features.offline import Offline

FRANCE = "The capital of France is"
GREETING = "<|im_start|>user\nSay hi<|im_end|>\n<|im_start|>assistant\n"
EXACT = 1e-3  # fp32 here and there differ by the order of sums


def generate(engine: Offline, prompt: str | list[str], **options: Any) -> Any:
    from vllm import SamplingParams

    sampling = SamplingParams(**{"temperature": 0, **options})
    results = engine.generate(prompt, sampling, use_tqdm=False)
    return results if isinstance(prompt, list) else results[0]


def answer(engine: Offline, prompt: str, **options: Any) -> Any:
    return generate(engine, prompt, **options).outputs[0]


def test_n_answers_are_those_of_consecutive_seeds(engine: Offline) -> None:
    sampling: dict[str, Any] = {"temperature": 1.0, "max_tokens": 5}
    together = generate(engine, FRANCE, n=3, seed=7, **sampling).outputs
    alone = [answer(engine, FRANCE, seed=seed, **sampling) for seed in (7, 8, 9)]
    assert [one.token_ids for one in together] == [one.token_ids for one in alone]
    assert len({tuple(one.token_ids) for one in together}) == 3


def test_a_seed_chooses_the_same_after_a_prompt_in_chunks(engine: Offline) -> None:
    prompt = "What we know of the river: " + "it goes on and on, " * 100
    in_chunks = answer(engine, prompt, seed=7, temperature=1.0, max_tokens=8)
    from_the_cache = answer(engine, prompt, seed=7, temperature=1.0, max_tokens=8)
    assert in_chunks.token_ids == from_the_cache.token_ids


def test_beams_are_scored_as_in_transformers_and_beat_greedy(
    engine: Offline, tokenizer: Any, reference_logprobs: Callable[[list[int]], torch.Tensor]
) -> None:
    from vllm.sampling_params import BeamSearchParams

    prompt = tokenizer.encode(FRANCE)

    def score(tokens: list[int]) -> float:
        steps = reference_logprobs(tokens)[len(prompt) - 1 : -1]
        return float(steps.gather(1, torch.tensor(tokens[len(prompt) :])[:, None]).sum())

    params = BeamSearchParams(beam_width=3, max_tokens=4)
    [result] = engine.beam_search([{"prompt_token_ids": prompt}], params)
    scores = [beam.cum_logprob for beam in result.sequences]
    assert len({tuple(beam.tokens) for beam in result.sequences}) == 3
    assert scores == sorted(scores, reverse=True)
    assert scores == pytest.approx([score(beam.tokens) for beam in result.sequences], abs=EXACT)
    greedy = answer(engine, FRANCE, max_tokens=4).token_ids
    assert scores[0] >= score([*prompt, *greedy]) - EXACT


def test_logprobs_of_answer_and_prompt_equal_transformers(
    engine: Offline, tokenizer: Any, reference_logprobs: Callable[[list[int]], torch.Tensor]
) -> None:
    result = generate(engine, FRANCE, max_tokens=4, logprobs=5, prompt_logprobs=2)
    prompt, tokens = tokenizer.encode(FRANCE), result.outputs[0].token_ids
    expected = reference_logprobs([*prompt, *tokens])
    steps = [*result.prompt_logprobs[1:], *result.outputs[0].logprobs]
    assert result.prompt_logprobs[0] is None
    assert len(steps) == len(prompt) + 3
    for position, step in enumerate(steps):
        for token, entry in step.items():
            assert entry.logprob == pytest.approx(float(expected[position, token]), abs=EXACT)
        wanted = 2 if position < len(prompt) - 1 else 5
        assert set(expected[position].topk(wanted).indices.tolist()) <= set(step)


def test_logit_bias_forces_and_forbids(engine: Offline) -> None:
    free = answer(engine, FRANCE, max_tokens=3).token_ids
    assert answer(engine, FRANCE, max_tokens=3, logit_bias={1000: 100}).token_ids == [1000] * 3
    assert free[0] not in answer(engine, FRANCE, max_tokens=3, logit_bias={free[0]: -100}).token_ids


def test_bad_words_do_not_appear(engine: Offline) -> None:
    assert "Paris" in answer(engine, FRANCE, max_tokens=6).text
    text = answer(engine, FRANCE, max_tokens=6, bad_words=["Paris"]).text
    assert text
    assert "Paris" not in text


def test_min_tokens_puts_the_end_off(engine: Offline) -> None:
    free = answer(engine, GREETING, max_tokens=40)
    assert free.finish_reason == "stop"
    more = len(free.token_ids) + 3
    longer = answer(engine, GREETING, max_tokens=more, min_tokens=more)
    assert len(longer.token_ids) == more
    assert list(longer.token_ids[: len(free.token_ids) - 1]) == list(free.token_ids[:-1])


def test_stop_at_strings_and_tokens(engine: Offline) -> None:
    free = answer(engine, FRANCE, max_tokens=6)
    assert free.text.startswith(" Paris.")
    cut = answer(engine, FRANCE, max_tokens=6, stop=["."])
    assert (cut.text, cut.finish_reason, cut.stop_reason) == (" Paris", "stop", ".")
    kept = answer(engine, FRANCE, max_tokens=6, stop=["."], include_stop_str_in_output=True)
    assert kept.text == " Paris."
    token = free.token_ids[1]
    ended = answer(engine, FRANCE, max_tokens=6, stop_token_ids=[token])
    assert ended.stop_reason == token
    assert list(ended.token_ids) == list(free.token_ids[:2])


def test_requests_that_wait_are_served_by_priority(engine: Offline) -> None:
    from vllm import SamplingParams

    priorities = [5, 2, 7, 1, 6, 3, 8, 4, 0, 9]
    sampling = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    results = engine.generate([FRANCE] * 10, sampling, priority=priorities, use_tqdm=False)
    times = [result.metrics for result in results]
    all_there = max(time.queued_ts for time in times)
    waited = [
        (time.scheduled_ts, priority)
        for time, priority in zip(times, priorities, strict=True)
        if time.scheduled_ts > all_there
    ]
    assert len(waited) >= 6  # no more than four ran meanwhile
    assert [priority for _, priority in sorted(waited)] == sorted(p for _, p in waited)


def test_collective_rpc_returns_what_the_worker_does(engine: Offline) -> None:
    assert engine.collective_rpc("determine_available_memory") == [512 << 20]


def test_reset_prefix_cache_forgets_and_sleep_as_well(engine: Offline) -> None:
    long = "word " * 300

    def run() -> tuple[int, list[int]]:
        result = generate(engine, long, max_tokens=2)
        return result.num_cached_tokens, list(result.outputs[0].token_ids)

    [(first, tokens), (cached, again)] = run(), run()
    assert (first, cached) == (0, 256)
    assert engine.reset_prefix_cache()
    assert run() == (0, tokens)
    engine.sleep(level=1)
    engine.wake_up()
    assert run() == (0, tokens)
    assert again == tokens
