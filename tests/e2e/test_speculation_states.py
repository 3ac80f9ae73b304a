"""Drafts of models with recurrent states, which are taken back with a refused token: greedy fp32
tokens are those of the same engine without drafts, alone, in batches, chunks and from the prefix
cache, with steps recorded.  And of one that reads prompts in both directions, but no drafts.

Small random models of the zoo: Mamba-2, short convolutions, gated delta nets and Kimi's, lightning
attention; HRM-Text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import mostly_slow
from tests.e2e import drafts
from tests.e2e.conftest import Start
from tests.e2e.test_speculation import DRAFTS, OPTIONS, ask

NEW_TOKENS = 60  # beyond the end of a block of the prefix cache
SETTINGS: dict[str, Any] = OPTIONS | {"skip_tokenizer_init": True}
NGRAM = {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 4}
# The model, how it is drafted for, what the engine is told besides.
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "Falcon-H1": ("FalconH1ForCausalLM", NGRAM, {}),
    "Granite 4": ("GraniteMoeHybridForCausalLM", NGRAM, {}),
    "HRM-Text": ("HrmTextForCausalLM", NGRAM, {}),
    "Kimi Linear": ("KimiLinearForCausalLM", NGRAM, {}),
    "LFM2": ("Lfm2ForCausalLM", NGRAM, {}),
    "Ling 2.5": ("BailingMoeV2_5ForCausalLM", NGRAM, {"trust_remote_code": True}),
    "Ling 2.5 on two ranks": (
        "BailingMoeV2_5ForCausalLM",
        NGRAM,
        {"trust_remote_code": True, "tensor_parallel_size": 2},
    ),
    "Nemotron-H": ("NemotronHForCausalLM", NGRAM, {}),
    "Nemotron-H by its own head": ("NemotronHForCausalLM", {"method": "mtp"}, {}),
    "OLMo Hybrid": ("OlmoHybridForCausalLM", NGRAM, {}),
    "Qwen3-Next": ("Qwen3NextForCausalLM", NGRAM, {}),
    "Qwen3-Next, no prefixes kept": (
        "Qwen3NextForCausalLM",
        NGRAM,
        {"enable_prefix_caching": False},
    ),
    "Qwen3-Next on two ranks": ("Qwen3NextForCausalLM", NGRAM, {"tensor_parallel_size": 2}),
    "Qwen3-Next by its own head": ("Qwen3NextForCausalLM", {"method": "mtp"}, {}),
    "Zamba 2": ("Zamba2ForCausalLM", NGRAM, {}),
}
QUICK = ("Granite 4", "HRM-Text", "LFM2", "Qwen3-Next", "Qwen3-Next by its own head")


@pytest.mark.parametrize("case", mostly_slow(CASES, *QUICK))
def test_states_of_refused_drafts_are_taken_back(case: str, start: Start, tmp_path: Path) -> None:
    name, method, options = CASES[case]
    model = drafts.write_with_states(tmp_path / "model", name)
    settings = SETTINGS | options
    expected = ask(start(model, **settings), drafts.SMALL_VOCABULARY, NEW_TOKENS)
    assert expected.alone == expected.together == expected.again
    speculative = {"num_speculative_tokens": DRAFTS} | method
    speculating = start(model, speculative_config=speculative, **settings)
    answers = ask(speculating, drafts.SMALL_VOCABULARY, NEW_TOKENS)
    for tokens in answers.tokens:
        assert tokens == expected.alone
    # Such models choose the same tokens after many a wrong state, but not as likely.
    assert answers.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
    assert answers.drafted > 500
    # A head of random numbers is hardly ever right.
    least = 0.03 if method is NGRAM else 0
    assert least < answers.accepted / answers.drafted < 0.9


def test_a_head_that_is_right_is_believed(start: Start, tmp_path: Path) -> None:
    """It reads the token that was drawn last, not the one before."""
    model = drafts.write_with_states(tmp_path / "model", "Qwen3NextForCausalLM")
    drafts.make_head_right(model)
    speculative = {"num_speculative_tokens": DRAFTS, "method": "mtp"}
    running = start(model, speculative_config=speculative, **SETTINGS)
    answers = ask(running, drafts.SMALL_VOCABULARY, NEW_TOKENS)
    assert answers.alone == answers.together == answers.again
    assert answers.accepted == answers.drafted > 500
